// What a GPU must offer: devices, modules, launches, memory, events. One implementation a vendor
// library, each in drivers/<name>, and the emulator, which implements it on the host. Thread-safe;
// no call throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::kernels {
struct TensorMap;
}

namespace fulmen::gpu {

class Compiler;

// What one copy by Hopper's TMA takes of a tensor: box_rows rows of each of box_heads heads, by 64
// columns of 16 bits, swizzled over rows of 128 bytes; head after head. What is past the tensor's
// end arrives as zeros.
struct TensorMapShape {
  const void* data = nullptr;  // at a multiple of 16
  bool half = false;           // fp16; else bf16
  int64_t extent[4]{};         // columns, rows, heads, batches: at least 1
  int64_t stride[3]{};         // in bytes, of rows, heads and batches: multiples of 16, more than 0
  int box_rows = 0;            // up to 256
  bool read_once = false;      // else what follows a box's columns in memory is likely to be read
                               // soon, too
  int box_heads = 1;           // up to 256
};

struct DeviceProperties {
  std::string name;  // "NVIDIA H200"
  std::string arch;  // "sm_90", "gfx1100": what find_chip() takes
  int wave_size = 0;
  int lds_bytes = 0;      // most LDS (shared memory) that one workgroup can have
  int compute_units = 0;  // multiprocessors (NVIDIA), compute units (AMD)
  std::size_t memory_bytes = 0;
  std::size_t cache_bytes = 0;  // L2
  int clock_mhz = 0;            // the most; 0 where it is not known
  int memory_clock_mhz = 0;
  std::string software;  // "driver 12.8, NVRTC 13.0 at /usr/lib/...": for listings
};

// A loaded code object on one device and one of its functions. Opaque; owned by the driver's user:
// unload it.
struct Module {
  void* handle = nullptr;
};
struct Function {
  void* handle = nullptr;
};

struct Launch {
  int64_t workgroups = 0;           // the grid, one-dimensional
  int workgroup_size = 0;           // lanes
  int lds_bytes = 0;                // dynamic LDS (shared memory)
  void* stream = nullptr;           // the caller's; null is the device's default stream
  const void* arguments = nullptr;  // the kernel's only parameter: a struct, passed by value
  std::size_t argument_bytes = 0;
  // The kernel waits by itself for the work ahead of it in the stream (grid_dependency_wait() in
  // kernels/core/base.h): its workgroups may be on the device before that has ended. Where a driver
  // cannot, it starts as others do.
  bool programmatic_launch = false;
  std::string_view kernel{};  // "prefill gfx11 bf16 d64 128x32": for counts
};

struct Event {
  void* handle = nullptr;
};

class Driver {
 public:
  virtual ~Driver() = default;
  // "cuda", "hip", "emulated": the backend's name.
  virtual std::string_view name() const noexcept = 0;

  // Ok where the vendor's libraries are there and at least one device is. Else which library is
  // missing or what it said, where it was looked for, and the one command that installs it. Found
  // out once a process.
  virtual Status available() const = 0;
  // Selectors of the devices, in order: "0", "1"; the emulator's are chips: "gfx1100". Empty when
  // not available().
  virtual std::vector<std::string> selectors() const = 0;
  virtual Result<DeviceProperties> properties(int device) const = 0;
  // Compiles for the devices of this driver (NVRTC, hipRTC or clang, a host compiler); null with
  // the reason when there is none.
  virtual Result<const Compiler*> compiler() const = 0;
  // What is asked for a kernel that compiler() cannot compile, or compiles wrongly.
  virtual Result<const Compiler*> second_compiler() const {
    return Status(StatusCode::unavailable, "there is no second compiler");
  }

  virtual Result<Module> load(int device, std::span<const std::byte> code) const = 0;
  virtual void unload(int device, Module module) const noexcept = 0;
  // Errors: no such function. lds_bytes of dynamic LDS are allowed for it from now on.
  virtual Result<Function> function(int device, Module module, const char* name,
                                    int lds_bytes) const = 0;
  // For kernels that take TmaForwardArguments. unsupported where the device has no TMA.
  virtual Status encode_tensor_map(int /*device*/, const TensorMapShape& /*shape*/,
                                   kernels::TensorMap& /*map*/) const {
    return {StatusCode::unsupported, "the device has no tensor memory accelerator"};
  }
  // Asynchronous. A failure gives the driver's own words.
  virtual Status launch(int device, Function function, const Launch& launch) const = 0;

  virtual Result<void*> allocate(int device, std::size_t bytes) const = 0;
  virtual void free(int device, void* memory) const noexcept = 0;
  // Memory for the work of one stream: given back when the stream has come to that point, without
  // waiting, where the driver can.
  virtual Result<void*> allocate_in_stream(int device, void* /*stream*/, std::size_t bytes) const {
    return allocate(device, bytes);
  }
  virtual void free_in_stream(int device, void* /*stream*/, void* memory) const noexcept {
    free(device, memory);
  }
  // From and to any memory of host and device; complete on return.
  virtual Status copy(int device, void* to, const void* from, std::size_t bytes) const = 0;
  virtual Status fill(int device, void* to, unsigned char byte, std::size_t bytes) const = 0;
  // A stream of the caller's own, for which no other stream's work waits, and which waits for none;
  // null, the default stream, where runs are complete on return.
  virtual Result<void*> create_stream(int /*device*/) const { return nullptr; }
  virtual void destroy_stream(int /*device*/, void* /*stream*/) const noexcept {}
  // copy() and fill() in the order of such a stream, which alone they wait for: complete when it
  // has been synchronised.
  virtual Status copy_in_stream(int device, void* /*stream*/, void* to, const void* from,
                                std::size_t bytes) const {
    return copy(device, to, from, bytes);
  }
  virtual Status fill_in_stream(int device, void* /*stream*/, void* to, unsigned char byte,
                                std::size_t bytes) const {
    return fill(device, to, byte, bytes);
  }
  // Whether kernels of the device can use the memory at this address: its own, page-locked, or what
  // it was given access to.
  virtual Status check_memory(int device, const void* memory) const = 0;
  // Whether the stream's work is being captured into a graph; false where there are no graphs.
  virtual bool is_capturing(int /*device*/, void* /*stream*/) const noexcept { return false; }
  // Calls `work`, whose allocations and copies a capture of other streams, by any thread, then does
  // not forbid.
  virtual void beside_captures(const std::function<void()>& work) const { work(); }
  virtual Status synchronize(int device, void* stream) const = 0;

  virtual Result<Event> create_event(int device) const = 0;
  virtual void destroy_event(int device, Event event) const noexcept = 0;
  virtual Status record(int device, Event event, void* stream) const = 0;
  // Waits for both. Milliseconds.
  virtual Result<float> elapsed(int device, Event begin, Event end) const = 0;
};

// One of each, alive as long as the process; no vendor's library is opened before available(),
// which is asked before other members.
const Driver& cuda_driver();
const Driver& hip_driver();
const Driver& emulated_driver();
const Driver& isa_driver();

}  // namespace fulmen::gpu
