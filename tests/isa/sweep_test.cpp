// ./dev test --long: checks clang's code for ordinary problems of every head_dim on every AMD chip
// of the table. If the machine-code check has a finding that the emulator of the instruction set
// does not confirm, it is a false alarm, which costs a user the kernel. Kernels that use scratch
// are listed.
//
// FULMEN_SWEEP_DIMS=8,176: these head dims alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/compile/report/report.h"
#include "gpu/compile/toolchains/first_llvm.h"
#include "gpu/drivers/isa/driver.h"
#include "gpu/launch/family.h"
#include "support/run_kernel.h"

namespace fulmen::testing {
namespace {

constexpr int kComputeUnits = 4;  // of the emulator: a plan there has the same kernels

// One kernel that a problem needs, and the problem that tests it.
struct Piece {
  CaseSpec spec;
  std::string family;
  gpu::Specialisation specialisation;
};

std::vector<int64_t> head_dims() {
  std::vector<int64_t> dims;
  const char* const asked = std::getenv("FULMEN_SWEEP_DIMS");
  std::istringstream list(asked == nullptr ? "" : asked);
  for (std::string one; std::getline(list, one, ',');) dims.push_back(std::stoll(one));
  for (int64_t dim = 8; asked == nullptr && dim <= 256; dim += 8) dims.push_back(dim);
  return dims;
}

std::vector<CaseSpec> specs() {
  CaseSpec prefill;
  prefill.dtype = DType::bf16;
  prefill.num_heads = 2;
  prefill.num_kv_heads = 1;
  prefill.seqlen_q = 70;
  prefill.seqlen_k = 200;
  CaseSpec causal = prefill, decode = prefill, backward = prefill;
  causal.causal = Causal::bottom_right;
  decode.seqlen_q = 1;
  decode.seqlen_k = 1100;
  backward.backward = true;
  backward.seqlen_k = 70;
  CaseSpec causal_backward = backward, fp16 = prefill, biased = backward;
  causal_backward.causal = Causal::bottom_right;
  fp16.dtype = DType::fp16;
  biased.bias = true;
  biased.bias_dtype = DType::bf16;
  std::vector<CaseSpec> all;
  for (const int64_t dim : head_dims()) {
    for (const int64_t dim_v : {dim, int64_t{128}}) {
      if (dim_v == dim && dim == 128) continue;  // the other one
      for (CaseSpec spec : {prefill, causal, decode, backward, causal_backward, fp16, biased}) {
        spec.head_dim = dim;
        spec.head_dim_v = dim_v;
        all.push_back(spec);
      }
    }
  }
  return all;
}

std::vector<Piece> pieces(const gpu::Chip& chip) {
  std::map<std::string, Piece> unique;  // by constants
  for (const CaseSpec& spec : specs()) {
    Random random(4242);
    const Problem p = Case(spec, random).problem();
    for (const gpu::Family* family : gpu::families()) {
      if (!chip.runs(family->target()) || family->target().is_portable() ||
          family->pass() != p.pass)
        continue;
      if (!family->serves(p, chip).yes) continue;
      for (const gpu::KernelLaunch& launch : family->plan(p, chip, kComputeUnits).launches) {
        if (launch.workgroups == 0) continue;
        const gpu::Specialisation& s = launch.specialisation;
        unique.try_emplace(std::string(s.entry) + prelude(s),
                           Piece{spec, std::string(family->name()), s});
      }
    }
  }
  std::vector<Piece> all;
  for (auto& [key, piece] : unique) all.push_back(std::move(piece));
  return all;
}

// Runs the problem as machine code; returns "" if the result is right and the emulator reports
// nothing.
std::string emulated(const Piece& piece, const std::string& chip) {
  const std::string device = "emulated-isa:" + chip;
  Random random(4242);
  Case c(piece.spec, random);
  for (const std::string& kernel : kernels_for(c.problem(), device)) {
    if (kernel.find("." + piece.family + ".") == std::string::npos || kernel.ends_with(".portable"))
      continue;
    const ::testing::AssertionResult right = verified(c, kernel, {device});
    return right ? "" : right.message();
  }
  return "no kernel of the family runs it";
}

class LongSweep : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(LongSweep, HasNoFalseAlarms) {
  const auto& [arch, clang] = GetParam();
  const auto compiler = gpu::clang_at(clang);
  if (!compiler.ok())
    GTEST_SKIP() << compiler.status().message() << ": apt-get install clang-22 lld-22 llvm-22";
  if (gpu::version_in_name(clang) < gpu::first_llvm(arch))
    GTEST_SKIP() << clang << " does not know " << arch;
  ::setenv("FULMEN_AMD_COMPILER", clang.c_str(), 1);
  ::setenv("FULMEN_AMD_CHECK", "0", 1);  // findings are looked at here
  ::setenv("FULMEN_CACHE_DIR", FULMEN_TEST_CACHE, 0);
  if (const Status status = gpu::isa_driver().available(); !status.ok())
    GTEST_SKIP() << status.message();
  std::string storage;
  gpu::Chip chip{};
  ASSERT_TRUE(gpu::find_chip(arch, storage, chip));
  const std::vector<Piece> all = pieces(chip);
  std::vector<std::string> failures(all.size());
  std::vector<KernelReport> reports(all.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t n = 0; (n = next.fetch_add(1)) < all.size();) {
      const auto request = compile_request(all[n].specialisation, chip, gpu::Platform::amd);
      if (!request.ok()) {
        failures[n] = request.status().message();
        continue;
      }
      const auto code = gpu::cached_compile(compiler.value(), {}, request.value());
      if (code.ok())
        reports[n] =
            gpu::report_on(chip, request.value(), code.value(), all[n].specialisation.lds_bytes);
      failures[n] = code.ok() ? reports[n].loop_missing : code.status().message();
    }
  };
  std::vector<std::thread> threads(std::max(1U, std::thread::hardware_concurrency()) - 1);
  for (std::thread& thread : threads) thread = std::thread(work);
  work();
  for (std::thread& thread : threads) thread.join();

  int in_scratch = 0, in_lanes = 0;
  for (std::size_t n = 0; n < all.size(); ++n) {
    const KernelReport& r = reports[n];
    EXPECT_EQ(failures[n], "");
    if (r.scratch_bytes > 0) {
      ++in_scratch;
      std::printf("%s %s: %d registers spilled, %d bytes of scratch\n", arch.c_str(),
                  r.kernel.c_str(), r.spills, r.scratch_bytes);
    } else if (r.spills > 0) {
      ++in_lanes;
    }
    if (r.findings.empty()) continue;
    const std::string wrong = emulated(all[n], arch);
    EXPECT_NE(wrong, "") << "false alarm: " << arch << " " << r.kernel << " of " << clang << ": "
                         << r.findings.front();
    if (!wrong.empty())
      std::printf("%s %s: %s\n  and the emulator: %s\n", arch.c_str(), r.kernel.c_str(),
                  r.findings.front().c_str(), wrong.c_str());
  }
  std::printf("%s of %s: %zu kernels, %d use scratch, %d keep scalars in lanes\n", arch.c_str(),
              clang.c_str(), all.size(), in_scratch, in_lanes);
  ::unsetenv("FULMEN_AMD_COMPILER");
  ::unsetenv("FULMEN_AMD_CHECK");
}

std::vector<std::string> amd_chips() {
  std::vector<std::string> names;
  for (const gpu::Chip& chip : gpu::chips()) {
    if (chip.vendor == gpu::Vendor::amd) names.emplace_back(chip.arch);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Amd, LongSweep,
                         ::testing::Combine(::testing::ValuesIn(amd_chips()),
                                            ::testing::Values("clang++-19", "clang++-22")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).substr(8);
                         });

}  // namespace
}  // namespace fulmen::testing
