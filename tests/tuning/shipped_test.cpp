// data/tuned: the shipped results are whole, legal for the problems they name, and measured with
// the kernels as they are now.
#include "tuning/shipped.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "fulmen/fulmen.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/launch/family.h"
#include "gpu/targets/chip.h"
#include "tools/bench/case_data.h"
#include "tools/tune/problems.h"
#include "tools/tune/records.h"
#include "tuning/results.h"
#include "tuning/space.h"

namespace fulmen::tuning {
namespace {

using tools::TuneRecord;

// The problem that a record's arguments give --problem.
Result<Problem> problem_of(const std::string& arguments) {
  const Result<tools::TuneProblem> problem = tools::parse_tune_problem(arguments);
  return problem.ok() ? tools::case_problem(problem->bench_case, problem->pass, {})
                      : problem.status();
}

const gpu::Family* family_of(const std::string& kernel) {
  const std::size_t first = kernel.find('.'), last = kernel.rfind('.');
  for (const gpu::Family* family : gpu::families()) {
    if (family->name() == kernel.substr(first + 1, last - first - 1) &&
        family->target().name == kernel.substr(last + 1))
      return family;
  }
  return nullptr;
}

// The kernel's code as it is now. It is the same on every driver, and the emulator's needs no
// device.
std::string build_of(const TuneRecord& r, const Problem& problem) {
  AttentionOptions options;
  options.kernel = "emulated" + r.kernel.substr(r.kernel.find('.'));
  const auto tuning = kernel_tuning(problem, "emulated:" + r.chip, options);
  return tuning.ok() ? tuning->build : tuning.status().message();
}

// Why a record must not be shipped; "" if it may.
std::string fault_of(const TuneRecord& r) {
  if (r.when.empty() || r.product.empty() || r.driver.empty() || r.compiler.empty())
    return "it does not say how it was measured";
  if (!(r.gain > 0.01)) return "it gains nothing";
  if (std::abs(r.gain - (1 - r.median_s / r.default_median_s)) > 0.002)
    return "its gain is not that of its times";
  std::string storage;
  gpu::Chip chip{};
  if (!gpu::find_chip(r.chip, storage, chip)) return "no chip " + r.chip;
  const gpu::Family* family = family_of(r.kernel);
  if (family == nullptr) return "no kernel " + r.kernel;
  const Result<Problem> problem = problem_of(r.arguments);
  if (!problem.ok()) return problem.status().message();
  if (problem_class(problem.value()) != r.problem_class) return "its problem is of another class";
  if (const std::string now = build_of(r, problem.value()); now != r.build)
    return fmt::format("the kernel is another one now ({}): does it still win?", now);
  const Space space = family->space(problem.value(), chip, r.compute_units);
  if (to_text(space, space.usual()) != r.usual)
    return "the default is another one now: does it still win?";
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
      EXPECT_TRUE(seen.insert(r.kernel + r.problem_class + r.product).second)
          << r.problem << " is there twice";
      EXPECT_EQ(fault_of(r), "") << file->name << ": " << r.problem;
    }
  }
}

// A record as `fulmen tune` on a GPU would write it, with the first configuration that is not the
// default.
TuneRecord record_of(const std::string& kernel, const std::string& arguments) {
  TuneRecord r;
  const Result<Problem> problem = problem_of(arguments);
  std::string storage;
  gpu::Chip chip{};
  const gpu::Family* family = family_of(kernel);
  if (!problem.ok() || family == nullptr || !gpu::find_chip("sm_90a", storage, chip)) return r;
  r.chip = "sm_90a";
  r.kernel = kernel;
  r.compute_units = 132;
  const Space space = family->space(problem.value(), chip, r.compute_units);
  r.problem = r.arguments = arguments;
  r.problem_class = problem_class(problem.value());
  r.build = build_of(r, problem.value());
  r.usual = to_text(space, space.usual());
  for (const Values& values : configurations(space)) {
    if (r.configuration.empty() && values != space.usual())
      r.configuration = to_text(space, values);
  }
  r.when = "2026-11-25";
  r.product = "NVIDIA H200";
  r.driver = "driver of CUDA 13.0";
  r.compiler = "NVRTC 13.0";
  r.default_median_s = 40e-6;
  r.median_s = 36e-6;
  r.gain = 0.1;
  return r;
}

// A processor has shorter ones, which are still different ones: attention to 77 keys stays that.
TEST(TuneProblems, AreDifferentOnes) {
  for (const tools::CaseSize size : {tools::CaseSize::cpu, tools::CaseSize::gpu}) {
    std::set<std::string> names;
    for (const tools::TuneProblem& one :
         tools::tune_problems("sdxl", DType::bf16, size, true).value()) {
      EXPECT_TRUE(names.insert(tools::tune_problem_name(one.bench_case, one.pass)).second)
          << one.bench_case.name;
    }
    EXPECT_GE(names.size(), 2U);
  }
}

TEST(ShippedResults, NameAProblemThatCanBeMadeAgain) {
  for (const tools::TuneProblem& one :
       tools::tune_problems("all", DType::fp16, tools::CaseSize::gpu, true).value()) {
    const Result<Problem> problem = tools::case_problem(one.bench_case, one.pass, {});
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<Problem> again = problem_of(tools::tune_problem_text(one.bench_case, one.pass));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(problem_class(again.value()), problem_class(problem.value()));
  }
}

TEST(ShippedResults, MayBeOfEveryKindOfProblem) {
  const std::string gpt = "batch=1,seqlen_q=4096,heads=32,kv_heads=8,head_dim=128,causal";
  for (const auto& [kernel, arguments] :
       {std::pair{"prefill_tma.sm90", gpt}, std::pair{"prefill_wgmma.sm90", gpt},
        std::pair{"backward_tma.sm90", gpt + ",backward"},
        std::pair{"backward.sm80", gpt + ",backward"},
        std::pair{"decode.sm80",
                  std::string("seqlen_q=1,seqlen_k=8192,heads=32,kv_heads=8,head_dim=128")},
        std::pair{
            "decode.sm80",
            std::string("seqlen_q=1,seqlen_k=8192,heads=32,kv_heads=8,head_dim=128,page_size=16")},
        std::pair{"boards.sm80",
                  std::string("batch=64,seqlen_q=64,heads=24,head_dim=32,bias,dtype=fp16")},
        std::pair{
            "short_backward.sm80",
            std::string("batch=64,seqlen_q=64,heads=24,head_dim=32,bias,backward,dtype=fp16")}}) {
    const TuneRecord record = record_of(std::string("cuda.") + kernel, arguments);
    EXPECT_EQ(record.build.size(), 16U) << kernel << ": " << record.build;
    EXPECT_EQ(fault_of(record), "") << kernel << " for " << arguments;
  }
}

TEST(ShippedResults, ThatDoNotHoldAreFound) {
  const TuneRecord good =
      record_of("cuda.prefill_wgmma.sm90", "batch=2,seqlen_q=1024,heads=20,head_dim=64");
  ASSERT_EQ(fault_of(good), "");
  const auto fault_with = [&](std::string TuneRecord::* field, const char* value) {
    TuneRecord bad = good;
    bad.*field = value;
    return fault_of(bad);
  };
  EXPECT_NE(fault_with(&TuneRecord::build, "0123456789abcdef").find("the kernel is another one"),
            std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::usual, "block_m=16").find("the default is another one"),
            std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::problem_class, "forward fp16").find("another class"),
            std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::arguments, "heads=2").find("seqlen_q and head_dim are needed"),
            std::string::npos);
  EXPECT_NE(fault_with(&TuneRecord::kernel, "cuda.nothing.sm90"), "");
  EXPECT_NE(fault_with(&TuneRecord::configuration, "block_m=17"), "");
}

TEST(KernelSourceIdentity, IsOfTheCodeThatIsCompiled) {
  const std::string prefill = gpu::kernel_source_identity({"forward/prefill.h"}, "sm80");
  EXPECT_EQ(prefill.size(), 16U);
  EXPECT_EQ(prefill, gpu::kernel_source_identity({"forward/prefill.h"}, "sm80"));
  std::set<std::string> all{prefill};
  for (const char* target : {"gfx11", "gfx12", "cdna3"}) {
    EXPECT_TRUE(all.insert(gpu::kernel_source_identity({"forward/prefill.h"}, target)).second)
        << target;
  }
  EXPECT_TRUE(all.insert(gpu::kernel_source_identity({"forward/decode.h"}, "sm80")).second);
  EXPECT_TRUE(all.insert(gpu::kernel_source_identity(
                             {"forward/decode.h", "forward/decode_combine.h"}, "sm80"))
                  .second);
}

}  // namespace
}  // namespace fulmen::tuning
