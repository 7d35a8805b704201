// What XLA's call on a GPU knows beside its buffers: the device, the stream, and scratch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

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
    // A vendor's name alone is the device of the arrays; a user's own backend has names of its own.
    const bool same = given.empty() || given == vendor || given == here;
    const bool built_in = given == "cpu" || is_emulated(given.c_str()) ||
                          given.compare(0, 4, "cuda") == 0 || given.compare(0, 3, "hip") == 0;
    if (!same && built_in)
      throw Refused(FULMEN_INVALID_ARGUMENT, "device is \"" + given + "\": the arrays are on " +
                                                 here + ", which is accepted, as is None");
    name_ = same ? here : given;
  }

  ~Gpu() {
    for (const Scratch& one : scratch_) {
      FreeArguments memory{sizeof(FreeArguments), nullptr, frame_.context, one.bytes, one.data};
      if (Error* error = frame_.api->free(&memory)) {
        DestroyErrorArguments gone{sizeof(DestroyErrorArguments), nullptr, error};
        frame_.api->destroy_error(&gone);
      }
    }
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const char* name() const { return name_.c_str(); }
  void* stream() const { return stream_; }

  // Scratch of the stream's order, until the handler returns: the next use of the memory is put
  // into the stream behind this call's work.
  void* allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    constexpr size_t kAlignment = 64;  // fulmen_plan_workspace_bytes()
    // XLA refuses alignments above its own allocator's, which is 16 in some builds.
    constexpr size_t kAsked = 16;
    size_t room = bytes + kAlignment;
    AllocateArguments memory{
        sizeof(AllocateArguments), nullptr, frame_.context, room, kAsked, nullptr};
    ask(frame_.api->allocate, memory);
    scratch_.push_back({memory.data, room});
    return std::align(kAlignment, bytes, memory.data, room);
  }

 private:
  template <class Arguments>
  static void ask(Error* (*function)(Arguments*), Arguments& arguments) {
    if (Error* error = function(&arguments)) throw Told{error};
  }

  struct Scratch {
    void* data;
    size_t bytes;
  };

  const CallFrame& frame_;
  std::vector<Scratch> scratch_;
  std::string name_;
  void* stream_ = nullptr;
};

}  // namespace fulmen::python::xla
