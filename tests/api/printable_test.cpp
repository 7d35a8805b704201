// What a program's own kernels and devices are called, and say, is shown without control
// characters.
#include "fulmen/printable.h"

#include <gtest/gtest.h>

#include "small_call.h"

namespace fulmen::testing {
namespace {

class LoudKernel final : public Kernel {
 public:
  std::string_view name() const noexcept override { return "loud.\x1b[2J"; }
  Support supports(const Problem& /*problem*/, const std::string& /*device*/) const override {
    return Support::no("\x1b[31mno\n");
  }
  double rank(const Problem& /*problem*/) const override { return 1; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& /*problem*/, const std::string& /*device*/,
                                          const AttentionOptions& /*options*/) const override {
    return Status(StatusCode::internal, "never");
  }
};

class LoudBackend final : public Backend {
 public:
  std::string_view name() const noexcept override { return "loud"; }
  std::vector<DeviceInfo> devices() const override {
    return {{"loud:0", "", "", true, ""}, {"loud:1", "", "", false, "\x1b[5mbroken\n"}};
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

 private:
  LoudKernel kernel_;
  std::vector<const Kernel*> kernels_{&kernel_};
};

TEST(Printable, NamesAndReasonsOfAProgramsOwnBackend) {
  ASSERT_TRUE(register_backend(std::make_shared<LoudBackend>()).ok());
  SmallCall call;
  const Problem problem = make_problem(call.tensors, call.options).value();
  call.options.kernel.clear();
  AttentionOptions forced = call.options;
  forced.kernel = "none\x1b[2J";
  for (const Status& status :
       {plan(problem, "loud:0", call.options).status(),
        plan(problem, "loud:1", call.options).status(), plan(problem, "loud:0", forced).status(),
        plan(problem, "loud\x1b[2J", call.options).status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().find_first_of("\x1b\n"), std::string::npos)
        << printable(status.message());
    EXPECT_NE(status.message().find("\\x1b["), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace fulmen::testing
