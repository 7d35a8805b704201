#include "gpu_drivers/fake/execution.h"

namespace fulmen::fake {
namespace {

class RecordOnly final : public Executable {
 public:
  std::string run(const LaunchRecord& /*launch*/) override { return {}; }
};

}  // namespace

const bool kExecutes = false;

std::unique_ptr<Executable> make_executable(const void* /*image*/, std::size_t /*bytes*/,
                                            const std::string& /*chip*/, std::string& /*error*/) {
  return std::make_unique<RecordOnly>();
}

}  // namespace fulmen::fake
