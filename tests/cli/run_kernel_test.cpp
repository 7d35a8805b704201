// bench/amd/run_kernel with kernels of our own: launches of three dimensions, a kernel by its name,
// hidden arguments, dynamic LDS, what it counts and what it refuses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "gpu/compile/report/amd_disassembler.h"
#include "program.h"
#include "runtime/run_program.h"

namespace fulmen::test {
namespace {

using nlohmann::json;

constexpr int kGrid[3] = {3, 2, 2}, kSize[3] = {4, 3, 2};
constexpr int kGroups = 12, kLanes = 24;

// `second` writes, a workgroup after the other, what the lane behind stored to LDS: its own number,
// that of its workgroup and the sizes that the runtime passes.
constexpr const char* kSource = R"(
typedef unsigned u;
#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 64))) void
KERNEL first(u* out) { out[0] = 7; }
extern __attribute__((shared)) u lds[];
KERNEL second(u* out, u factor, u first_word) {
  const auto* const hidden = (const __attribute__((address_space(4))) u*)__builtin_amdgcn_implicitarg_ptr();
  const u sizes = hidden[3], depth = hidden[4] & 0xFFFFU;
  const u width = sizes & 0xFFFFU, height = sizes >> 16U;
  const u lane = __builtin_amdgcn_workitem_id_x() +
                 width * (__builtin_amdgcn_workitem_id_y() + height * __builtin_amdgcn_workitem_id_z());
  const u group = __builtin_amdgcn_workgroup_id_x() +
                  hidden[0] * (__builtin_amdgcn_workgroup_id_y() + hidden[1] * __builtin_amdgcn_workgroup_id_z());
  const u lanes = width * height * depth;
  lds[first_word + lane] = factor * lane + group;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  out[group * lanes + lane] = lds[first_word + (lane + 1) % lanes];
}
)";

class RunKernelTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    for (const char* name : {"clang++-19", "clang++-20", "clang++-21", "clang++-22", "clang++"}) {
      if (clang_.empty()) clang_ = find_program(name);
    }
    if (!gpu::find_objdump().ok() || clang_.empty())
      GTEST_SKIP() << "clang or llvm-objdump is not there";
  }

  Outcome run_kernel(const json& description) const {
    write_bytes("run.json", description.dump());
    return program(FULMEN_RUN_KERNEL, {"run.json"});
  }
  void compile(const std::string& arch, const std::string& source = kSource,
               const std::vector<std::string>& more = {}) const {
    write_bytes("two.hip", source);
    std::vector<std::string> command{clang_,
                                     "-x",
                                     "hip",
                                     "-nogpuinc",
                                     "-nogpulib",
                                     "-O3",
                                     "--offload-device-only",
                                     "--no-gpu-bundle-output",
                                     "-mcode-object-version=5",
                                     "--offload-arch=" + arch,
                                     path("two.hip"),
                                     "-o",
                                     path("two.co")};
    command.insert(command.end(), more.begin(), more.end());
    const auto log = run_program(command);
    ASSERT_TRUE(log.ok()) << log.status().message();
  }
  static json description(const std::string& arch) {
    return {{"arch", arch},
            {"buffers",
             {{"out",
               {{"bytes", 4 * kGroups * kLanes},
                {"save", "out.npy"},
                {"dtype", "int32"},
                {"shape", {kGroups, kLanes}}}}}},
            {"launches",
             {{{"code", "two.co"},
               {"kernel", "second"},
               {"grid", kGrid},
               {"workgroup_size", kSize},
               {"dynamic_lds", 4 * (kLanes + 5)},
               {"arguments", {{{"buffer", "out"}}, {{"i32", 100}}, {{"i32", 5}}}}}}}};
  }
  void expect_refused(const json& asked, const std::string& part) const {
    const Outcome outcome = run_kernel(asked);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err.rfind("run_kernel: ", 0), 0U) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  }

 private:
  std::string clang_;
};

TEST_F(RunKernelTest, ThreeDimensionsNamesHiddenArgumentsAndDynamicLds) {
  // Waves of 32 and 64 lanes, numbers in one register, in three, and of workgroups in trap
  // registers.
  for (const std::string arch : {"gfx1100", "gfx942", "gfx1201", "gfx1030"}) {
    compile(arch);
    const Outcome outcome = run_kernel(description(arch));
    ASSERT_EQ(outcome.exit_code, 0) << arch << ": " << outcome.err;
    const auto out = tools::read_npy(path("out.npy"), false);
    ASSERT_TRUE(out.ok()) << out.status().message();
    const auto* const words = static_cast<const int32_t*>(out->data.data());
    for (int group = 0; group < kGroups; ++group) {
      for (int lane = 0; lane < kLanes; ++lane) {
        ASSERT_EQ(words[group * kLanes + lane], 100 * ((lane + 1) % kLanes) + group)
            << arch << ", workgroup " << group << ", lane " << lane;
      }
    }
    const json launch = json::parse(outcome.out).at("launches").at(0);
    EXPECT_EQ(launch["kernel"], "second");
    EXPECT_EQ(launch["workgroups"], kGroups);
    EXPECT_EQ(launch["waves"], 1);
    EXPECT_EQ(launch["lds_bytes"], 4 * (kLanes + 5));
    EXPECT_EQ(launch["global_bytes"], 4 * kGroups * kLanes);
    EXPECT_EQ(launch["instructions"]["LDS"], 2 * kGroups);
    EXPECT_EQ(launch["lds_cycles"], 2 * kGroups) << "a word a lane: a cycle an access";
    EXPECT_EQ(launch["lds_conflicts"], 0);
    EXPECT_EQ(launch["matrix_flops"], 0);
  }
}

TEST_F(RunKernelTest, ArgumentsInRegisters) {
  compile("gfx942", kSource, {"-mllvm", "-amdgpu-kernarg-preload-count=3"});
  const Outcome outcome = run_kernel(description("gfx942"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto out = tools::read_npy(path("out.npy"), false);
  ASSERT_TRUE(out.ok()) << out.status().message();
  const auto* const words = static_cast<const int32_t*>(out->data.data());
  EXPECT_EQ(words[0], 100);
  EXPECT_EQ(words[kGroups * kLanes - 1], kGroups - 1) << "the last lane has lane 0's number";
  const auto loads = [&] {
    return json::parse(
               run_kernel(description("gfx942")).out)["launches"][0]["instructions"]["scalar load"]
        .get<int>();
  };
  const int preloaded = loads();
  compile("gfx942");
  EXPECT_LT(preloaded, loads()) << "what is in registers is not loaded";
}

// What compilers and people write elsewhere: branches to labels, stores to LDS that are not waited
// for before a barrier, vector registers where accumulators begin, the number of gfx12's wave.
TEST_F(RunKernelTest, HandWrittenCode) {
  const std::string head =
      "#define KERNEL extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(1, 64))) "
      "void\nKERNEL second(unsigned* out, unsigned, unsigned) { unsigned r = 0; ";
  const std::string tail =
      " out[__builtin_amdgcn_workitem_id_x() + 64 * __builtin_amdgcn_workgroup_id_x()] = r; }";
  const auto run = [&](const std::string& arch, const std::string& body, int lanes) {
    compile(arch, head + body + tail);
    json asked = description(arch);
    asked["launches"][0]["grid"] = {1};
    asked["launches"][0]["workgroup_size"] = {lanes};
    return run_kernel(asked);
  };
  const auto first_and_last = [&](int lanes) {
    const auto out = tools::read_npy(path("out.npy"), false);
    const auto* const words = static_cast<const int32_t*>(out->data.data());
    return std::pair(words[0], words[lanes - 1]);
  };
  Outcome outcome = run("gfx942",
                        "asm volatile(\"s_mov_b32 s20, 5\\ntwice: v_add_u32 %0, 3, %0\\n"
                        "s_sub_u32 s20, s20, 1\\ns_cmp_lg_u32 s20, 0\\ns_cbranch_scc1 twice\" "
                        ": \"+v\"(r) : : \"s20\");",
                        64);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(first_and_last(64), std::pair(15, 15)) << "five turns";
  outcome =
      run("gfx942",
          "asm volatile(\"v_mov_b32 v4, 0\\nds_write_b32 v4, v4\\ns_barrier\" : : : \"v4\");", 64);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  outcome = run("gfx1201", "asm volatile(\"s_bfe_u32 %0, ttmp8, 0x50019\" : \"=s\"(r));", 64);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(first_and_last(64), std::pair(0, 1)) << "two waves of 32 lanes";
}

// An MI300X multiplies 16 x 16 x 16 in 16 cycles of a SIMD; 8 later the sums can be added to. Two
// waves of a SIMD fill each other's waits.
TEST_F(RunKernelTest, TimelineOfProducts) {
  const auto cycles = [&](const std::string& addend, int lanes) {
    compile("gfx942",
            "extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(1, 512))) void "
            "second(unsigned* out, unsigned, unsigned) { asm volatile(\".rept 256\\n"
            "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[10:11], " +
                addend +
                "\\n.endr\" : : : \"v4\", \"v5\", \"v6\", \"v7\", \"v8\", \"v9\", \"v10\", "
                "\"v11\"); }");
    json asked = description("gfx942");
    asked["launches"][0]["grid"] = {1};
    asked["launches"][0]["workgroup_size"] = {lanes};
    asked["launches"][0]["dynamic_lds"] = 65536;  // one workgroup on a compute unit
    const Outcome outcome = run_kernel(asked);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json timeline = json::parse(outcome.out)["launches"][0]["timeline"];
    EXPECT_EQ(timeline["resident"], 1);
    return timeline["cycles"].get<double>();
  };
  EXPECT_NEAR(cycles("0", 64), 256 * 16, 100);
  EXPECT_NEAR(cycles("v[4:7]", 64), 256 * 24, 100);
  EXPECT_NEAR(cycles("0", 256), 256 * 16, 100) << "a wave a SIMD";
  EXPECT_NEAR(cycles("0", 512), 256 * 32, 100);
  EXPECT_NEAR(cycles("v[4:7]", 512), 256 * 32, 100) << "32 > 24";
}

TEST_F(RunKernelTest, ChosenWorkgroupsAndScaledCounts) {
  compile("gfx1100");
  json asked = description("gfx1100");
  asked["launches"][0]["workgroups"] = {1, 7};
  asked["launches"][0]["times"] = 6;
  asked["buffers"]["out"]["fill"] = 0;
  asked["problem"] = {{"dtype", "fp16"}, {"memory_bytes", 960e9}, {"flops", 1e12}};
  const Outcome outcome = run_kernel(asked);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto out = tools::read_npy(path("out.npy"), false);
  ASSERT_TRUE(out.ok()) << out.status().message();
  for (int group = 0; group < kGroups; ++group) {
    EXPECT_EQ(static_cast<const int32_t*>(out->data.data())[group * kLanes],
              group == 1 || group == 7 ? 100 + group : 0);
  }
  // An RX 7900 XTX has 960 GB/s by its maker's figures.
  const json modelled = json::parse(outcome.out)["modelled"];
  EXPECT_EQ(modelled["limit"], "memory");
  EXPECT_NEAR(modelled["memory_s"].get<double>(), 1, 1e-12);
  EXPECT_NEAR(modelled["tflops"].get<double>(), 1, 1e-5);
  EXPECT_EQ(json::parse(outcome.out)["launches"][0]["global_bytes"], 4 * kGroups * kLanes);
}

TEST_F(RunKernelTest, RefusesWhatItCannotRun) {
  compile("gfx1100");
  const auto with = [](const std::string& member, const json& value) {
    json asked = description("gfx1100");
    asked["launches"][0][member] = value;
    return asked;
  };
  expect_refused(with("kernel", "third"), "no kernel \"third\" in it: it has first, second");
  expect_refused(with("grid", {0}), "launches[0].grid is 0: 1 to 2147483647 are accepted");
  expect_refused(with("grid", {1, 1, 1, 1}), "has 4 sizes: one to three are accepted");
  expect_refused(with("workgroup_size", {64, 32}), "has 2048 lanes: up to 1024 are accepted");
  expect_refused(with("workgroups", {12}), "launches[0].workgroups is 12: 0 to 11 are accepted");
  expect_refused(with("lds", 4), "launches[0] has a member \"lds\"");
  expect_refused(with("arguments", {{{"buffer", "out"}}}), "1 arguments: second takes 3");
  expect_refused(with("arguments", {{{"buffer", "out"}}, {{"i64", 1}}, {{"i32", 1}}}),
                 "argument 1 has 8 bytes: second takes 4");
  expect_refused(with("arguments", {{{"buffer", "in"}}}), "there is no buffer \"in\"");
  expect_refused(with("arguments", {{{"buffer", "out"}, {"i32", 1}}}),
                 "needs one of buffer, i32, i64 and f32");
  expect_refused(with("code", "none.co"), "none.co");
  expect_refused(with("code", "run.json"), "no ELF file");
  expect_refused(with("dynamic_lds", 4), "of LDS at ");
  json asked = description("gfx1100");
  asked["arch"] = "gfx1201";
  expect_refused(asked, "it is for amdgcn-amd-amdhsa--gfx1100, arch is gfx1201");
  asked = description("gfx1100");
  asked["buffers"]["out"]["shape"] = {kGroups, kLanes, 2};
  expect_refused(asked, "buffers.out.shape is [12, 24, 2]: the buffer has 1152 bytes");
  asked.erase("arch");
  expect_refused(asked, "the description has no \"arch\"");
  write_bytes("run.json", "{");
  EXPECT_EQ(program(FULMEN_RUN_KERNEL, {"run.json"}).err, "run_kernel: run.json: it is no JSON\n");
}

}  // namespace
}  // namespace fulmen::test
