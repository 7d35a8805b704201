// The C ABI's structs in C++ and back, and errors of C calls: what every file of the C ABI needs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"
#include "fulmen/tensor_fields.h"

namespace fulmen::c_api {

// The message of this thread's last call.
std::string& last_error() noexcept;
// Text that a call gave out, which is valid until this thread's next call.
std::string& given_text() noexcept;
// The code, its message kept.
int fail(const Status& status) noexcept;
Status null_argument(const char* name);

// Runs body, which returns a Status, and turns whatever comes out into a code and this thread's
// message.
template <class Body>
int guarded(const Body& body) noexcept {
  try {
    last_error().clear();
    const Status status = body();
    if (!status.ok()) return fail(status);
    last_error().clear();  // a callback's own calls may have failed
    return FULMEN_OK;
  } catch (const std::bad_alloc&) {
    return fail({StatusCode::out_of_memory, "out of memory"});
  } catch (const std::exception& error) {
    return fail({StatusCode::internal, error.what()});
  } catch (...) {
    return fail({StatusCode::internal, "unknown exception"});
  }
}

// Defaults for as much of the struct as its owner's headers know.
template <class Struct>
void init_struct(Struct defaults, Struct* to, std::size_t struct_size) {
  if (to == nullptr || struct_size < sizeof(std::size_t)) return;
  std::memset(static_cast<void*>(to), 0, struct_size);
  std::memcpy(static_cast<void*>(to), &defaults, std::min(struct_size, sizeof(Struct)));
  to->struct_size = struct_size;
}

// No struct is nearly as large: a larger size is a mistake, and what lies there may not be the
// caller's memory.
constexpr std::size_t kMostStructBytes = 8192;

// The size that a struct says it has. A struct's size is a multiple of its alignment: another one
// would cut a pointer in two.
template <class Struct>
Status check_struct_size(const char* name, std::size_t size) {
  if (size >= sizeof(std::size_t) && size <= kMostStructBytes && size % alignof(Struct) == 0)
    return {};
  return {StatusCode::invalid_argument,
          fmt::format("{}.struct_size is {}: a multiple of {}, from {} to {}, is accepted; set it "
                      "with sizeof (version {} has {})",
                      name, size, alignof(Struct), sizeof(std::size_t), kMostStructBytes, version(),
                      sizeof(Struct))};
}

// A struct from a caller that may know fewer fields than this library, or more: those must be 0, as
// what they ask for would be ignored.
template <class Struct>
Status read_struct(const char* name, const Struct* from, Struct& to) {
  const std::size_t size = from->struct_size;
  if (Status status = check_struct_size<Struct>(name, size); !status.ok()) return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t at = sizeof(Struct); at < size; ++at) {
    if (bytes[at] == 0) continue;
    return {StatusCode::invalid_argument,
            fmt::format("{}.struct_size is {} and byte {} of it is {}: version {} knows {} bytes, "
                        "those behind must be 0",
                        name, size, at, bytes[at], version(), sizeof(Struct))};
  }
  std::memcpy(static_cast<void*>(&to), from, std::min(size, sizeof(Struct)));
  to.struct_size = sizeof(Struct);
  return {};
}

// As much of the struct as the caller knows; what this library does not know is 0.
template <class Struct>
Status write_struct(const char* name, const Struct& from, Struct* to) {
  if (to == nullptr) return null_argument(name);
  const std::size_t size = to->struct_size;
  if (Status status = check_struct_size<Struct>(name, size); !status.ok()) return status;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &from, std::min(size, sizeof(Struct)));
  to->struct_size = size;
  return {};
}

// Runs the body of a call that returns no status. Returns true if body ran to its end. The last
// error stays: it belongs to a call that does return a status.
template <class Body>
bool done_quietly(const Body& body) noexcept {
  std::string before;
  before.swap(last_error());  // body's callbacks may make calls
  bool done = true;
  try {
    body();
  } catch (...) {
    done = false;
  }
  before.swap(last_error());
  return done;
}

fulmen_tensor to_c(const Tensor& tensor) noexcept;
Tensor to_cpp(const fulmen_tensor& view) noexcept;
// Error where a field that has no meaning yet is not 0.
Status check_reserved(const char* name, const fulmen_tensor& view);
// A call's tensors with the list that function_tensors views. Copies share it.
struct OwnedTensors : AttentionTensors {
  std::shared_ptr<const FunctionTensor[]> functions;
};
Result<OwnedTensors> to_cpp(const fulmen_tensors* from);
Result<AttentionOptions> to_cpp(const fulmen_options* from);
Result<RunOptions> to_cpp(const fulmen_run_options* from);

// Tensors, options and device of a call, translated and checked.
struct Call {
  OwnedTensors tensors;
  AttentionOptions options;
  std::string device;
  Problem problem;
};
Result<Call> to_cpp(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options,
                    const char* device);

// A tensor of the C struct. kCTensors is in the order of kTensorTable; a test compares their names.
struct CTensor {
  const char* name;
  fulmen_tensor fulmen_tensors::* tensor;
};
#define FULMEN_C_TENSOR(name) \
  CTensor { #name, &fulmen_tensors::name }
inline constexpr CTensor kCTensors[kTensorFields] = {
    FULMEN_C_TENSOR(q),
    FULMEN_C_TENSOR(k),
    FULMEN_C_TENSOR(v),
    FULMEN_C_TENSOR(bias),
    FULMEN_C_TENSOR(keep_mask),
    FULMEN_C_TENSOR(alibi_slopes),
    FULMEN_C_TENSOR(sinks),
    FULMEN_C_TENSOR(cu_seqlens_q),
    FULMEN_C_TENSOR(cu_seqlens_k),
    FULMEN_C_TENSOR(seqlens_k),
    FULMEN_C_TENSOR(block_table),
    FULMEN_C_TENSOR(leftpad_k),
    FULMEN_C_TENSOR(k_scale),
    FULMEN_C_TENSOR(v_scale),
    FULMEN_C_TENSOR(kv_num_blocks),
    FULMEN_C_TENSOR(kv_indices),
    FULMEN_C_TENSOR(full_kv_num_blocks),
    FULMEN_C_TENSOR(full_kv_indices),
    FULMEN_C_TENSOR(out),
    FULMEN_C_TENSOR(lse),
    FULMEN_C_TENSOR(dout),
    FULMEN_C_TENSOR(dlse),
    FULMEN_C_TENSOR(dq),
    FULMEN_C_TENSOR(dk),
    FULMEN_C_TENSOR(dv),
    FULMEN_C_TENSOR(dbias),
    FULMEN_C_TENSOR(dsinks),
};
#undef FULMEN_C_TENSOR

}  // namespace fulmen::c_api
