// Runs launches by the library's own emulator of the instruction set. Its clock counts executed
// instructions, a nanosecond each.
#include <span>
#include <utility>

#include "emulator/machine_code/decoding/decode.h"
#include "emulator/machine_code/workgroup.h"
#include "gpu_drivers/fake/execution.h"

namespace fulmen::fake {
namespace {

namespace isa = gpu::isa;

class IsaExecutable final : public Executable {
 public:
  explicit IsaExecutable(isa::Program program) : program_(std::move(program)) {}

  std::string run(const LaunchRecord& launch) override {
    const isa::LaunchData data =
        isa::launch_data(program_, launch.arguments,
                         isa::Grid{.workgroups = {launch.workgroups, 1, 1},
                                   .workgroup_size = {launch.workgroup_size, 1, 1}});
    std::vector<isa::MemoryMap::Block> blocks;
    for (const auto& [begin, allocation] : state().memory)
      blocks.push_back({begin, begin + allocation.bytes});
    isa::MemoryMap memory(std::move(blocks));
    isa::Counts counts{};
    std::string error;
    for (unsigned id = 0; id < launch.workgroups && error.empty(); ++id) {
      error = isa::run_workgroup(program_, isa::Schedule{}, id, data, memory, counts);
    }
    for (const uint64_t count : counts) state().clock_ms += static_cast<double>(count) * 1e-6;
    return error;
  }

 private:
  isa::Program program_;
};

}  // namespace

const bool kExecutes = true;

std::unique_ptr<Executable> make_executable(const void* image, std::size_t bytes,
                                            const std::string& chip, std::string& error) {
  Result<isa::Program> program =
      isa::read_code_object({static_cast<const std::byte*>(image), bytes}, chip);
  if (program.ok()) return std::make_unique<IsaExecutable>(std::move(program).value());
  error = program.status().message();
  return nullptr;
}

}  // namespace fulmen::fake
