// What XLA's call on a GPU knows beside its buffers: the device, the stream, and scratch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "fulmen/fulmen_c.h"
#include "run/device_copies.h"
#include "xla/xla_frame.h"

namespace fulmen::python::xla {

class Gpu {
 public:
  // vendor: "cuda" or "hip". given: the device that the caller of Fulmen named, or "".
  Gpu(const CallFrame& frame, const char* vendor, const std::string& given) : frame_(frame) {
    if (frame.api->struct_size < offsetof(Api, device) + sizeof(Api::device))
      throw Refused(FULMEN_UNSUPPORTED,
                    "fulmen: this XLA does not tell a call its device; update jaxlib");
    // XLA's size of the struct has no padding behind the last field.
    DeviceArguments device{offsetof(DeviceArguments, device) + sizeof(DeviceArguments::device),
                           nullptr, frame.context, 0};
    ask(frame.api->device, device);
    StreamArguments stream{sizeof(StreamArguments), nullptr, frame.context, nullptr};
    ask(frame.api->stream, stream);
    stream_ = stream.stream;
    const std::string here = vendor + (":" + std::to_string(device.device));
    if (!given.empty() && (given == "cpu" || is_emulated(given.c_str())))
      throw Refused(FULMEN_INVALID_ARGUMENT, "device is \"" + given + "\": the arrays are on " +
                                                 here + ", which is accepted, as is None");
    name_ = given.empty() ? here : given;
  }

  const char* name() const { return name_.c_str(); }
  void* stream() const { return stream_; }

  // Scratch of the stream's order: XLA gives it to others when this call's work is done.
  void* allocate(size_t bytes) const {
    if (bytes == 0) return nullptr;
    constexpr size_t kAlignment = 64;  // fulmen_plan_workspace_bytes()
    // XLA refuses alignments above its own allocator's, which is 16 in some builds.
    constexpr size_t kAsked = 16;
    AllocateArguments memory{sizeof(AllocateArguments), nullptr, frame_.context,
                             bytes + kAlignment,        kAsked,  nullptr};
    ask(frame_.api->allocate, memory);
    size_t room = bytes + kAlignment;
    return std::align(kAlignment, bytes, memory.data, room);
  }

 private:
  template <class Arguments>
  static void ask(Error* (*function)(Arguments*), Arguments& arguments) {
    if (Error* error = function(&arguments)) throw Told{error};
  }

  const CallFrame& frame_;
  std::string name_;
  void* stream_ = nullptr;
};

}  // namespace fulmen::python::xla
