// The C ABI's structs in C++ and back, and errors of C calls: what every file of the C ABI needs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>

#include "fulmen/fulmen.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::c_api {

// The message of this thread's last call.
std::string& last_error() noexcept;
// Text that a call gave out, which is valid until this thread's next call.
std::string& given_text() noexcept;
// The code, its message kept.
int fail(const Status& status) noexcept;
Status null_argument(const char* name);

// Runs body, which returns a Status, and turns whatever comes out into a code and this thread's message.
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

// A struct from a caller that may know fewer fields than this library; more is refused, since what they ask for would be ignored.
template <class Struct>
Status read_struct(const char* name, const Struct* from, Struct& to) {
  // A struct's size is a multiple of its alignment; another one would cut a pointer in two.
  if (from->struct_size < sizeof(std::size_t) || from->struct_size > sizeof(Struct) || from->struct_size % alignof(Struct) != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("{}.struct_size is {}: up to {} bytes, a multiple of {}, are known to version {}; set it with sizeof", name,
                        from->struct_size, sizeof(Struct), alignof(Struct), version())};
  }
  std::memcpy(static_cast<void*>(&to), from, from->struct_size);
  to.struct_size = sizeof(Struct);
  return {};
}

template <class Struct>
Status write_struct(const char* name, const Struct& from, Struct* to) {
  if (to == nullptr) return null_argument(name);
  const std::size_t size = to->struct_size;
  if (size < sizeof(std::size_t) || size % alignof(Struct) != 0) {
    return {StatusCode::invalid_argument, fmt::format("{}.struct_size is {}: set it with sizeof", name, size)};
  }
  std::memcpy(static_cast<void*>(to), &from, std::min(size, sizeof(Struct)));
  to->struct_size = size;
  return {};
}

// Of a call that returns no status: whether body came to its end. The last error, which is of a call that does, stays.
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
Result<AttentionTensors> to_cpp(const fulmen_tensors* from);
Result<AttentionOptions> to_cpp(const fulmen_options* from);

// Tensors, options and device of a call, translated and checked.
struct Call {
  AttentionTensors tensors;
  AttentionOptions options;
  std::string device;
  Problem problem;
};
Result<Call> to_cpp(Pass pass, const fulmen_tensors* tensors, const fulmen_options* options, const char* device);

// A tensor of a call, by where it is in each struct.
struct TensorPair {
  fulmen_tensor fulmen_tensors::* c;
  Tensor AttentionTensors::* cpp;
};
inline constexpr TensorPair kTensorPairs[] = {{&fulmen_tensors::q, &AttentionTensors::q},
                                              {&fulmen_tensors::k, &AttentionTensors::k},
                                              {&fulmen_tensors::v, &AttentionTensors::v},
                                              {&fulmen_tensors::out, &AttentionTensors::out},
                                              {&fulmen_tensors::bias, &AttentionTensors::bias},
                                              {&fulmen_tensors::keep_mask, &AttentionTensors::keep_mask},
                                              {&fulmen_tensors::alibi_slopes, &AttentionTensors::alibi_slopes},
                                              {&fulmen_tensors::sinks, &AttentionTensors::sinks},
                                              {&fulmen_tensors::lse, &AttentionTensors::lse},
                                              {&fulmen_tensors::dout, &AttentionTensors::dout},
                                              {&fulmen_tensors::dlse, &AttentionTensors::dlse},
                                              {&fulmen_tensors::dq, &AttentionTensors::dq},
                                              {&fulmen_tensors::dk, &AttentionTensors::dk},
                                              {&fulmen_tensors::dv, &AttentionTensors::dv},
                                              {&fulmen_tensors::dbias, &AttentionTensors::dbias},
                                              {&fulmen_tensors::dsinks, &AttentionTensors::dsinks},
                                              {&fulmen_tensors::cu_seqlens_q, &AttentionTensors::cu_seqlens_q},
                                              {&fulmen_tensors::cu_seqlens_k, &AttentionTensors::cu_seqlens_k},
                                              {&fulmen_tensors::seqlens_k, &AttentionTensors::seqlens_k},
                                              {&fulmen_tensors::block_table, &AttentionTensors::block_table},
                                              {&fulmen_tensors::leftpad_k, &AttentionTensors::leftpad_k}};

}  // namespace fulmen::c_api
