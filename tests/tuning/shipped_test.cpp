// data/tuned: what comes with the library is whole, legal for the problems it names, and of the kernels as they are now.
#include "tuning/shipped.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "fulmen/fulmen.h"
#include "gpu/chip.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/launch/family.h"
#include "tools/tune_problems.h"
#include "tools/tune_records.h"
#include "tuning/results.h"
#include "tuning/space.h"

namespace fulmen::tuning {
namespace {

using tools::TuneRecord;

// The problem of "sdxl bf16 2 x 20 x 64 q1024".
Result<Problem> problem_named(const std::string& name) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    const auto all = tools::tune_problems("all", dtype, tools::CaseSize::gpu, true);
    for (const tools::TuneProblem& one : all.value()) {
      const tools::BenchCase& c = one.bench_case;
      if (c.name != name || one.pass != Pass::forward) continue;
      const Tensor q = Tensor::bshd(nullptr, dtype, c.batch, c.seqlen_q, c.heads, c.head_dim);
      const Tensor k = Tensor::bshd(nullptr, dtype, c.batch, c.seqlen_k, c.kv_heads, c.head_dim);
      AttentionOptions options;
      if (c.causal) options.causal = Causal::bottom_right;
      return make_problem({.q = q, .k = k, .v = k, .out = q}, options);
    }
  }
  return Status(StatusCode::invalid_argument, name + ": no model of `fulmen tune` has it");
}

const gpu::Family* family_of(const std::string& kernel) {
  const std::size_t first = kernel.find('.'), last = kernel.rfind('.');
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() == kernel.substr(first + 1, last - first - 1) && family->target().name == kernel.substr(last + 1))
      return family;
  }
  return nullptr;
}

// The kernel's code as it is now. It is the same on every driver, and the emulator's needs no device.
std::string build_of(const TuneRecord& r, const Problem& problem) {
  AttentionOptions options;
  options.kernel = "emulated" + r.kernel.substr(r.kernel.find('.'));
  const auto tuning = kernel_tuning(problem, "emulated:" + r.chip, options);
  return tuning.ok() ? tuning->build : tuning.status().message();
}

// Why a record must not come with the library; "" where it may.
std::string fault_of(const TuneRecord& r) {
  if (r.when.empty() || r.product.empty() || r.driver.empty() || r.compiler.empty()) return "it does not say how it was measured";
  if (!(r.gain > 0.01)) return "it gains nothing";
  if (std::abs(r.gain - (1 - r.median_s / r.default_median_s)) > 0.002) return "its gain is not that of its times";
  std::string storage;
  gpu::Chip chip{};
  if (!gpu::find_chip(r.chip, storage, chip)) return "no chip " + r.chip;
  const gpu::Family* family = family_of(r.kernel);
  if (family == nullptr) return "no kernel " + r.kernel;
  const Result<Problem> problem = problem_named(r.problem);
  if (!problem.ok()) return problem.status().message();
  if (problem_class(problem.value()) != r.problem_class) return "its problem is of another class";
  if (build_of(r, problem.value()) != r.build) return "the kernel is another one now: does it still win?";
  const Space space = family->space(problem.value(), chip, r.compute_units);
  if (to_text(space, space.usual()) != r.usual) return "the default is another one now: does it still win?";
  const auto asked = parse_tuning(r.configuration, r.problem, "shipped");
  if (!asked.ok()) return asked.status().message();
  const auto choice = choose(r.kernel, space, asked.value());
  return choice.ok() ? "" : choice.status().message();
}

TEST(ShippedResults, AreWholeAndLegal) {
  for (const ShippedFile* file = kShippedFiles; file != kShippedFiles + kShippedFileCount; ++file) {
    const auto records = tools::parse_records(file->text, file->name);
    ASSERT_TRUE(records.ok()) << records.status().message();
    ASSERT_FALSE(records->empty()) << file->name;
    EXPECT_EQ(file_name_of(records->front().chip), file->name);
    const auto parsed = parse_results(file->text, records->front().chip);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->size(), records->size());
    std::set<std::string> seen;
    for (const TuneRecord& r : records.value()) {
      EXPECT_TRUE(seen.insert(r.kernel + r.problem_class + r.product).second) << r.problem << " is there twice";
      EXPECT_EQ(fault_of(r), "") << file->name << ": " << r.problem;
    }
  }
}

TEST(ShippedResults, ThatDoNotHoldAreFound) {
  const Result<Problem> problem = problem_named("sdxl bf16 2 x 20 x 64 q1024");
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip("sm_90a", storage, chip));
  TuneRecord good;
  good.chip = "sm_90a";
  good.kernel = "cuda.prefill_wgmma.sm90";
  good.compute_units = 132;
  const gpu::Family* family = family_of(good.kernel);
  ASSERT_NE(family, nullptr);
  const Space space = family->space(problem.value(), chip, good.compute_units);
  const std::vector<Values> all = configurations(space);
  ASSERT_GT(all.size(), 1U);
  good.problem = "sdxl bf16 2 x 20 x 64 q1024";
  good.problem_class = problem_class(problem.value());
  good.build = build_of(good, problem.value());
  good.usual = to_text(space, space.usual());
  good.configuration = to_text(space, all[1]);
  good.when = "2026-11-25";
  good.product = "NVIDIA H200";
  good.driver = "driver of CUDA 13.0";
  good.compiler = "NVRTC 13.0";
  good.default_median_s = 40e-6;
  good.median_s = 36e-6;
  good.gain = 0.1;
  EXPECT_EQ(good.build.size(), 16U) << good.build;
  EXPECT_EQ(fault_of(good), "");
  const auto fault_with = [&](std::string TuneRecord::* field, const char* value) {
    TuneRecord bad = good;
    bad.*field = value;
    return fault_of(bad);
  };
  EXPECT_NE(fault_with(&TuneRecord::build, "0123456789abcdef").find("the kernel is another one"), std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::usual, "block_m=16").find("the default is another one"), std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::problem_class, "forward fp16").find("another class"), std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::kernel, "cuda.nothing.sm90"), "");
  EXPECT_NE(fault_with(&TuneRecord::configuration, "block_m=17"), "");
}

TEST(KernelSourceIdentity, IsOfTheCodeThatIsCompiled) {
  const std::string prefill = gpu::kernel_source_identity({"forward/prefill.h"}, "sm80");
  EXPECT_EQ(prefill.size(), 16U);
  EXPECT_EQ(prefill, gpu::kernel_source_identity({"forward/prefill.h"}, "sm80"));
  std::set<std::string> all{prefill};
  for (const char* target : {"gfx11", "gfx12", "cdna3"}) {
    EXPECT_TRUE(all.insert(gpu::kernel_source_identity({"forward/prefill.h"}, target)).second) << target;
  }
  EXPECT_TRUE(all.insert(gpu::kernel_source_identity({"forward/decode.h"}, "sm80")).second);
  EXPECT_TRUE(all.insert(gpu::kernel_source_identity({"forward/decode.h", "forward/decode_combine.h"}, "sm80")).second);
}

}  // namespace
}  // namespace fulmen::tuning
