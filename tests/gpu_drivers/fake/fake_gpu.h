// Shared parts of the fake vendor libraries. They keep device memory on the host, check every call
// against the rules of the real interface, and record the calls for the test. Only one of them
// executes launches (execution.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace fulmen::fake {

struct LaunchRecord {
  std::string kernel;
  int device = 0;
  const void* context = nullptr;  // CUDA: the one that was current
  unsigned workgroups = 0, workgroup_size = 0, lds_bytes = 0;
  const void* stream = nullptr;
  std::vector<std::byte> arguments;
  bool early = false;  // CUDA: before the work ahead of it in the stream has ended
};

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
  bool mapped = false;        // HIP: of virtual memory; it is nobody's by its attributes where
                              // device is -2
  unsigned other_access = 0;  // bit n: device n may use it, too
};

struct State {
  std::mutex mutex;
  std::vector<std::string> calls;       // by name, in order
  std::vector<std::string> complaints;  // rules of the interface that a call broke
  std::vector<LaunchRecord> launches;
  // A call's name -> the error it returns instead of doing its work.
  std::map<std::string, int> failures;
  bool capturing = false;  // as in a stream capture: a call that would break it is complained about
  bool relaxed = false;    // the thread has said that it may load code in a capture
  std::map<std::uintptr_t, Allocation> memory;
  // HIP: page-locked memory of the host, and where the devices have it.
  void *registered = nullptr, *registered_at = nullptr;
  int modules = 0, events = 0;  // alive
  int last_error = 0;           // HIP: what hipGetLastError will say
  bool prints = false;          // complaints go to stderr, too
  double clock_ms = 0;          // the device's, where launches run

  void complain(const std::string& text);
  // Records a call; returns the error that it must return, or 0. breaks_capture: it may not be made
  // while a stream is captured.
  int enter(const char* call, bool breaks_capture = true);

  void* allocate(std::size_t bytes, int device);
  void free(const char* call, void* memory);
  // The allocation that holds an address, or null.
  const Allocation* find(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    auto next = memory.upper_bound(at);
    if (next == memory.begin()) return nullptr;
    --next;
    return at - next->first < next->second.bytes ? &next->second : nullptr;
  }
  // Complains about a range that begins in an allocation and goes past its end.
  void check_range(const char* call, const void* address, std::size_t bytes);
};

State& state();

}  // namespace fulmen::fake

#define FULMEN_FAKE_EXPORT extern "C" __attribute__((visibility("default")))
// Gives a test the state of the library that it has loaded.
FULMEN_FAKE_EXPORT fulmen::fake::State* fulmen_fake_state();
