// Shared by the handlers of XLA's custom calls: reading a call's frame, and the calls of a mapped
// dim.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments/array.h"
#include "fulmen/fulmen_c.h"
#include "xla/xla_ffi.h"

namespace fulmen::python::xla {

// A handler ends with a message of its own, or with an error that XLA has made.
struct Refused : std::runtime_error {
  Refused(int status_, const std::string& message) : std::runtime_error(message), status(status_) {}
  int status;
};
struct Told {
  Error* error;
};

inline Error* fail(const CallFrame& frame, int status, const char* message) {
  ErrorCode code = ErrorCode::internal;
  if (status == FULMEN_INVALID_ARGUMENT) code = ErrorCode::invalid_argument;
  if (status == FULMEN_UNSUPPORTED) code = ErrorCode::unimplemented;
  if (status == FULMEN_UNAVAILABLE) code = ErrorCode::unavailable;
  if (status == FULMEN_OUT_OF_MEMORY) code = ErrorCode::resource_exhausted;
  CreateErrorArguments arguments{offsetof(CreateErrorArguments, code) + sizeof(ErrorCode), nullptr,
                                 message, code};
  return frame.api->create_error(&arguments);
}

// Whether XLA only asks for the handler's interface version.
inline bool describe(const CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != MetadataExtension::kType)
    return false;
  Metadata& metadata = *reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  // What is read here has been the same in every 0.x, and struct sizes are checked, so XLA's own
  // minor version will do.
  metadata.version.major = 0;
  metadata.version.minor = frame.api != nullptr ? frame.api->version.minor : 1;
  metadata.traits = 0;
  return true;
}

inline fulmen_dtype dtype_of(DataType dtype) {
  switch (dtype) {
    case DataType::fp16:
      return FULMEN_FP16;
    case DataType::bf16:
      return FULMEN_BF16;
    case DataType::boolean:
      return FULMEN_BOOLEAN;
    case DataType::int32:
      return FULMEN_INT32;
    case DataType::int64:
      return FULMEN_INT64;
    case DataType::uint8:
      return FULMEN_UINT8;
    case DataType::int8:
      return FULMEN_INT8;
    case DataType::fp8_e4m3fn:
      return FULMEN_FP8_E4M3;
    case DataType::fp8_e5m2:
      return FULMEN_FP8_E5M2;
    case DataType::fp8_e4m3fnuz:
      return FULMEN_FP8_E4M3FNUZ;
    case DataType::fp8_e5m2fnuz:
      return FULMEN_FP8_E5M2FNUZ;
    default:  // another would have been refused when the call was traced
      return FULMEN_FP32;
  }
}

inline int64_t bytes_of(DataType dtype) {
  switch (dtype) {
    case DataType::boolean:
    case DataType::int8:
    case DataType::uint8:
    case DataType::fp8_e4m3fn:
    case DataType::fp8_e5m2:
    case DataType::fp8_e4m3fnuz:
    case DataType::fp8_e5m2fnuz:
      return 1;
    case DataType::int64:
      return 8;
    case DataType::fp16:
    case DataType::bf16:
      return 2;
    default:
      return 4;
  }
}

template <class T>
T number(const Attributes& attributes, std::string_view name, DataType dtype, T otherwise) {
  const auto* scalar = static_cast<const Scalar*>(attributes.find(name, AttributeType::scalar));
  if (scalar == nullptr || scalar->dtype != dtype) return otherwise;
  std::memcpy(&otherwise, scalar->value, sizeof otherwise);
  return otherwise;
}

inline std::string text(const Attributes& attributes, std::string_view name) {
  const auto* found = static_cast<const Text*>(attributes.find(name, AttributeType::string));
  return found == nullptr ? std::string() : std::string(found->data, found->size);
}

// Dims in front of those of one call, and where in a buffer a call's part is.
struct Mapped {
  const Buffer* buffer;
  int64_t bytes;  // of one call's part

  Mapped(const Buffer& b, int leading) : buffer(&b), bytes(bytes_of(b.dtype)) {
    for (int64_t d = leading; d < b.rank; ++d) bytes *= b.dims[d];
  }
  int64_t bytes_of_all() const {
    int64_t all = python::xla::bytes_of(buffer->dtype);
    for (int64_t d = 0; d < buffer->rank; ++d) all *= buffer->dims[d];
    return all;
  }
  int64_t elements() const { return bytes / python::xla::bytes_of(buffer->dtype); }  // of a part
  // Whether each call has a part of its own, and whether all have the same.
  bool is_whole(const std::vector<int64_t>& sizes) const {
    return std::equal(sizes.begin(), sizes.end(), buffer->dims);
  }
  bool is_one(const std::vector<int64_t>& sizes) const {
    return std::all_of(buffer->dims, buffer->dims + sizes.size(),
                       [](int64_t size) { return size == 1; });
  }
  // Where the part of the n-th of all calls begins, row-major over sizes.
  int64_t offset(int64_t n, const std::vector<int64_t>& sizes) const {
    int64_t at = 0, pitch = 1;
    for (auto d = static_cast<int64_t>(sizes.size()); d-- > 0; n /= sizes[d]) {
      if (buffer->dims[d] > 1) at += n % sizes[d] * pitch;
      pitch *= buffer->dims[d];
    }
    return at * bytes;
  }
  char* part(int64_t n, const std::vector<int64_t>& sizes) const {
    return static_cast<char*>(buffer->data) + offset(n, sizes);
  }
};

// The part of a buffer that belongs to one call, row-major, as views are.
inline View view_of(const Buffer& buffer, int leading) {
  View view;
  view.data = buffer.data;
  view.dtype = dtype_of(buffer.dtype);
  view.ndim = static_cast<int>(buffer.rank) - leading;
  std::copy_n(buffer.dims + leading, view.ndim, view.shape);
  int64_t stride = 1;
  for (int d = view.ndim; d-- > 0; stride *= std::max<int64_t>(view.shape[d], 1))
    view.strides[d] = stride;
  return view;
}

// XLA computes with denormal numbers flushed to 0, which is a state of its thread. Attention does
// not; and a pool's threads, which a call may start, keep the state of their creator.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&saved_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t saved_;
};

// A handler: body returns a fulmen_status.
template <class Body>
Error* handle(CallFrame* frame, const Body& body) {
  if (describe(*frame)) return nullptr;
  if (!frame->readable())
    return fail(*frame, FULMEN_UNSUPPORTED,
                "fulmen: this XLA calls handlers in an older way; update jaxlib");
  if (frame->stage != Stage::execute) return nullptr;
  const DefaultArithmetic arithmetic;
  try {
    const int status = body();
    return status == FULMEN_OK ? nullptr : fail(*frame, status, fulmen_last_error());
  } catch (const Told& told) {
    return told.error;
  } catch (const Refused& refused) {
    return fail(*frame, refused.status, refused.what());
  } catch (const std::exception& error) {
    return fail(*frame, FULMEN_INTERNAL, error.what());
  }
}

}  // namespace fulmen::python::xla
