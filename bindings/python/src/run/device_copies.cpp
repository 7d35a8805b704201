#include "run/device_copies.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace fulmen::python {
namespace {

size_t size_of(int32_t dtype) {
  if (dtype == FULMEN_INT64) return 8;
  if (dtype == FULMEN_FP32 || dtype == FULMEN_INT32) return 4;
  return dtype == FULMEN_FP16 || dtype == FULMEN_BF16 ? 2 : 1;
}

// Bytes from the first to the last element; 0 if there is none.
size_t bytes_of(const fulmen_tensor& t) {
  if (t.data == nullptr || std::find(t.shape, t.shape + 4, 0) != t.shape + 4) return 0;
  int64_t last = 0;
  for (int d = 0; d < 3; ++d) last += (t.shape[d] - 1) * t.strides[d];
  last += (fulmen_row_elements(t.dtype, t.shape[3]) - 1) * t.strides[3];
  return static_cast<size_t>(last + 1) * size_of(t.dtype);
}

// Bytes between the elements may belong to another tensor.
void copy_elements(const fulmen_tensor& to, const std::vector<char>& from) {
  const auto size = static_cast<int64_t>(size_of(to.dtype));
  for (int64_t a = 0; a < to.shape[0]; ++a) {
    for (int64_t b = 0; b < to.shape[1]; ++b) {
      for (int64_t c = 0; c < to.shape[2]; ++c) {
        const int64_t row = a * to.strides[0] + b * to.strides[1] + c * to.strides[2];
        for (int64_t d = 0; d < fulmen_row_elements(to.dtype, to.shape[3]); ++d) {
          const int64_t at = (row + d * to.strides[3]) * size;
          std::memcpy(static_cast<char*>(to.data) + at, from.data() + at,
                      static_cast<size_t>(size));
        }
      }
    }
  }
}

}  // namespace

bool is_emulated(const char* device) {
  constexpr std::string_view kEmulated = "emulated";
  const std::string_view name =
      device != nullptr && *device != '\0' ? device : fulmen_default_device();
  return name.substr(0, kEmulated.size()) == kEmulated;
}

DeviceCopies::~DeviceCopies() {
  for (void* memory : memory_) fulmen_device_free(device_.c_str(), memory);
}

int DeviceCopies::add(fulmen_tensor& tensor, bool written) {
  const size_t bytes = bytes_of(tensor);
  if (bytes == 0) {
    tensor.data = nullptr;  // the host's address would be refused
    return FULMEN_OK;
  }
  for (const Copy& one : copies_) {
    if (one.written != written || one.host.data != tensor.data || bytes_of(one.host) < bytes)
      continue;
    tensor.data = one.data;
    return FULMEN_OK;
  }
  void* memory = nullptr;
  if (const int status = fulmen_device_allocate(device_.c_str(), bytes, &memory);
      status != FULMEN_OK)
    return status;
  memory_.push_back(memory);
  if (const int status = fulmen_device_copy(device_.c_str(), memory, tensor.data, bytes);
      status != FULMEN_OK)
    return status;
  copies_.push_back({tensor, memory, written});
  tensor.data = memory;
  return FULMEN_OK;
}

int DeviceCopies::give_back() const {
  for (const Copy& one : copies_) {
    if (!one.written) continue;
    std::vector<char> bytes(bytes_of(one.host));
    const int status = fulmen_device_copy(device_.c_str(), bytes.data(), one.data, bytes.size());
    if (status != FULMEN_OK) return status;
    copy_elements(one.host, bytes);
  }
  return FULMEN_OK;
}

}  // namespace fulmen::python
