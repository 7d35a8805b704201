#include "gpu_drivers/fake/fake_gpu.h"

#include <cstdio>
#include <cstdlib>

namespace fulmen::fake {

State& state() {
  static auto* const kState = new State;  // outlives every user
  return *kState;
}

void State::complain(const std::string& text) {
  complaints.push_back(text);
  if (prints) std::fprintf(stderr, "fake driver: %s\n", text.c_str());
}

int State::enter(const char* call, bool breaks_capture) {
  calls.emplace_back(call);
  if (capturing && breaks_capture) complain(std::string(call) + " during a stream capture");
  const auto failure = failures.find(call);
  return failure == failures.end() ? 0 : failure->second;
}

void* State::allocate(std::size_t bytes, int device) {
  void* address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  memory[reinterpret_cast<std::uintptr_t>(address)] = {bytes, device};
  return address;
}

void State::free(const char* call, void* address) {
  if (memory.erase(reinterpret_cast<std::uintptr_t>(address)) == 0) {
    complain(std::string(call) + " of memory that was not allocated");
    return;
  }
  std::free(address);
}

void State::check_range(const char* call, const void* address, std::size_t bytes) {
  if (bytes == 0 || find(address) == nullptr) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto& [start, allocation] = *--memory.upper_bound(begin);
  if (begin + bytes > start + allocation.bytes)
    complain(std::string(call) + " goes past the end of an allocation");
}

}  // namespace fulmen::fake

fulmen::fake::State* fulmen_fake_state() { return &fulmen::fake::state(); }
