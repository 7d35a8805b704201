// The emulated GPU of builds without Boost.Context: it is listed and says why it is not there.
#include "gpu/driver.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/system.h"

namespace fulmen::gpu {
namespace {

Status absent() {
  if (platform::kThisSystem == platform::System::windows) {
    return {StatusCode::unavailable,
            "the emulated GPU is not there on Windows: the fibers that stand for its lanes are "
            "Boost.Context's of Linux; cpu, hip:0 and cuda:0 are accepted"};
  }
  return {StatusCode::unavailable,
          "this library was built without Boost.Context, which the emulator's fibers need: install "
          "libboost-context-dev and build "
          "again"};
}

class AbsentDriver final : public Driver {
 public:
  std::string_view name() const noexcept override { return "emulated"; }
  Status available() const override { return absent(); }
  std::vector<std::string> selectors() const override { return {}; }
  Result<DeviceProperties> properties(int /*device*/) const override { return absent(); }
  Result<const Compiler*> compiler() const override { return absent(); }
  Result<Module> load(int /*device*/, std::span<const std::byte> /*code*/) const override {
    return absent();
  }
  void unload(int /*device*/, Module /*module*/) const noexcept override {}
  Result<Function> function(int /*device*/, Module /*module*/, const char* /*name*/,
                            int /*lds_bytes*/) const override {
    return absent();
  }
  Status launch(int /*device*/, Function /*function*/, const Launch& /*launch*/) const override {
    return absent();
  }
  Result<void*> allocate(int /*device*/, std::size_t /*bytes*/) const override { return absent(); }
  void free(int /*device*/, void* /*memory*/) const noexcept override {}
  Status copy(int /*device*/, void* /*to*/, const void* /*from*/,
              std::size_t /*bytes*/) const override {
    return absent();
  }
  Status fill(int /*device*/, void* /*to*/, unsigned char /*byte*/,
              std::size_t /*bytes*/) const override {
    return absent();
  }
  Status check_memory(int /*device*/, const void* /*memory*/) const override { return absent(); }
  Status synchronize(int /*device*/, void* /*stream*/) const override { return absent(); }
  Result<Event> create_event(int /*device*/) const override { return absent(); }
  void destroy_event(int /*device*/, Event /*event*/) const noexcept override {}
  Status record(int /*device*/, Event /*event*/, void* /*stream*/) const override {
    return absent();
  }
  Result<float> elapsed(int /*device*/, Event /*begin*/, Event /*end*/) const override {
    return absent();
  }
};

}  // namespace

const Driver& emulated_driver() {
  constinit static MadeOnce<const AbsentDriver> made;
  return made.get();
}

}  // namespace fulmen::gpu
