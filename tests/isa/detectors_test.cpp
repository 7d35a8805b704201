// Each rule of the instruction set's emulator, broken by a tiny kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/drivers/isa/driver.h"
#include "isa/machine.h"

namespace fulmen::testing {
namespace {

constexpr int kLanes = 32;

// Memory of the emulated device, and the result of a kernel with `body`, HIP code over `float* x`
// and `int lane`.
struct Outcome {
  std::vector<uint32_t> words;
  std::string error;
  gpu::isa::Counts counts{};
};

Outcome run(const std::string& body, const std::string& arch = "gfx1100",
            int workgroup_size = kLanes, const std::string& attribute = "noinline") {
  const gpu::Driver& driver = gpu::isa_driver();
  const std::vector<std::string> names = driver.selectors();
  const int device = static_cast<int>(std::find(names.begin(), names.end(), arch) - names.begin());
  const std::string source =
      "typedef unsigned u; extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(" +
      std::to_string(workgroup_size) + ", " + std::to_string(workgroup_size) + "), " + attribute +
      ")) void fulmen_kernel(u* x) { const u lane = __builtin_amdgcn_workitem_id_x();\n" + body +
      "}\n";
  const auto code =
      gpu::offline_clang_compiler().value()->compile({"tiny", source, arch, workgroup_size});
  if (!code.ok()) return {{}, code.status().message(), {}};
  const auto module = driver.load(device, code->code);
  if (!module.ok()) return {{}, module.status().message(), {}};
  const auto function = driver.function(device, module.value(), "fulmen_kernel", 0);
  const std::size_t bytes = sizeof(uint32_t) * static_cast<std::size_t>(workgroup_size);
  void* memory = driver.allocate(device, bytes).value();
  for (int n = 0; n < workgroup_size; ++n)
    static_cast<uint32_t*>(memory)[n] = 100U + static_cast<uint32_t>(n);
  const gpu::Launch launch{.workgroups = 1,
                           .workgroup_size = workgroup_size,
                           .arguments = &memory,
                           .argument_bytes = sizeof memory};
  static_cast<void>(gpu::isa::take_counts());
  const Status status = driver.launch(device, function.value(), launch);
  Outcome outcome{std::vector<uint32_t>(static_cast<std::size_t>(workgroup_size)),
                  status.message()};
  if (const auto launches = gpu::isa::take_counts(); !launches.empty())
    outcome.counts = launches.back().counts;
  std::memcpy(outcome.words.data(), memory, bytes);
  driver.free(device, memory);
  driver.unload(device, module.value());
  return outcome;
}

void expect_error(const Outcome& outcome, const std::string& part) {
  EXPECT_NE(outcome.error.find(part), std::string::npos)
      << "\"" << outcome.error << "\" and not " << part;
}

class IsaDetectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(IsaDetectors, APermlaneExchangesRows) {
  const Outcome outcome =
      run("x[lane] = __builtin_amdgcn_permlanex16(x[lane], x[lane], 0x76543210u, 0xfedcba98u, "
          "false, false);");
  ASSERT_EQ(outcome.error, "");
  for (uint32_t l = 0; l < kLanes; ++l) EXPECT_EQ(outcome.words[l], 100 + (l ^ 16U));
}

// LLVM's miscompilation of row sums: the exchange under a branch that turns its other lanes off.
constexpr const char* kUnderBranch =
    "u s = x[lane]; if (lane < 16) { u r; asm volatile(\"v_permlanex16_b32 %0, %1, %2, %3 "
    "op_sel:[FI,1]\" : \"=v\"(r) : \"v\"(s), "
    "\"s\"(0x76543210u), \"s\"(0xfedcba98u)); x[lane] = s + r; }";

TEST_F(IsaDetectors, AnExchangeReadsALaneThatIsOff) {
  std::string body = kUnderBranch;
  for (const char* arch : {"gfx1100", "gfx1151", "gfx1201"}) {
    body.replace(body.find("op_sel:[") + 8, 2, "0 ");
    expect_error(run(body, arch), "which is off");
    body = kUnderBranch;
  }
  body.replace(body.find("op_sel:[") + 8, 2, "1 ");
  EXPECT_EQ(run(body).error, "") << "fetch-inactive reads it";
}

// The same for every instruction that reads another lane's register, in waves of 32 and of 64
// lanes.
TEST_F(IsaDetectors, OtherExchangesReadALaneThatIsOff) {
  const std::string moves = "v_mov_b32_dpp %0, %1 row_shl:8 row_mask:0xf bank_mask:0xf";
  const auto under_branch = [](const std::string& instruction, const std::string& wait) {
    return "u s = x[lane], at = (lane ^ 8) * 4; if (lane % 16 < 8) { u r; asm volatile(\"" +
           instruction + "\\n" + wait +
           "\" : \"=&v\"(r) : \"v\"(s), \"v\"(at)); x[lane] = s + r; }";
  };
  for (const auto& [arch, wait] :
       {std::pair<std::string, std::string>{"gfx1100", "s_waitcnt lgkmcnt(0)"},
        {"gfx1201", "s_wait_dscnt 0"},
        {"gfx942", "s_waitcnt lgkmcnt(0)"}}) {
    const int lanes = arch == "gfx942" ? 64 : 32;
    expect_error(run(under_branch(moves, ""), arch, lanes), "which is off");
    expect_error(run(under_branch("ds_bpermute_b32 %0, %2, %1", wait), arch, lanes),
                 "which is off");
    expect_error(
        run(under_branch("ds_swizzle_b32 %0, %1 offset:swizzle(SWAP,8)", wait), arch, lanes),
        "which is off");
    // No other lane: each lane reads its own register.
    EXPECT_EQ(
        run(under_branch("ds_swizzle_b32 %0, %1 offset:swizzle(BITMASK_PERM, \\\"ppppp\\\")", wait),
            arch, lanes)
            .error,
        "");
    if (arch == "gfx942") continue;
    EXPECT_EQ(run(under_branch(moves + " fi:1", ""), arch, lanes).error, "")
        << "fetch-inactive reads it";
  }
}

// Memory's and LDS's counters both count a flat load. On CDNA such loads arrive in any order, on
// RDNA in theirs: of two, the first is there when one is left.
TEST_F(IsaDetectors, AFlatLoadIsWaitedForByBothCounters) {
  const auto load = [](const std::string& name, const std::string& waits, const std::string& rest) {
    return "u r, t; asm volatile(\"flat_load_" + name + " %0, %2\\n" + rest + waits +
           "v_add_u32 %0, 1, %0\\n\" : \"=&v\"(r), \"=&v\"(t) : \"v\"(x + lane) : \"memory\"); "
           "asm volatile(\"s_waitcnt vmcnt(0) lgkmcnt(0)\"); x[lane] = r;";
  };
  const std::string vm = "s_waitcnt vmcnt(0)\\n", lgkm = "s_waitcnt lgkmcnt(0)\\n",
                    other = "flat_load_dword %1, %2\\n",
                    all_but_one = "s_waitcnt vmcnt(1) lgkmcnt(1)\\n";
  for (const std::string arch : {"gfx90a", "gfx942"}) {
    const Outcome right = run(load("dword", vm + lgkm, ""), arch, 64);
    ASSERT_EQ(right.error, "") << arch;
    for (uint32_t l = 0; l < 64; ++l) EXPECT_EQ(right.words[l], 101 + l);
    expect_error(run(load("dword", vm, ""), arch, 64), "was not waited for");
    expect_error(run(load("dword", lgkm, ""), arch, 64), "was not waited for");
    expect_error(run(load("dword", all_but_one, other), arch, 64), "was not waited for");
  }
  std::string body = load("b32", all_but_one, "flat_load_b32 %1, %2\\n");
  body.replace(body.find("v_add_u32"), 9, "v_add_nc_u32");
  EXPECT_EQ(run(body).error, "");
}

TEST_F(IsaDetectors, ASwizzleExchangesLanes) {
  for (const auto& [how, expected] :
       {std::pair<std::string, uint32_t (*)(uint32_t)>{"SWAP,4", [](uint32_t l) { return l ^ 4U; }},
        {"REVERSE,8", [](uint32_t l) { return l ^ 7U; }},
        {"BROADCAST,8,3", [](uint32_t l) { return l / 8 * 8 + 3; }},
        {"QUAD_PERM,1,0,3,2", [](uint32_t l) { return l ^ 1U; }},
        {"BITMASK_PERM, \\\"01pip\\\"", [](uint32_t l) { return ((l & 7U) | 8U) ^ 2U; }}}) {
    const Outcome outcome =
        run("u r; asm volatile(\"ds_swizzle_b32 %0, %1 offset:swizzle(" + how +
            ")\\ns_waitcnt lgkmcnt(0)\" : \"=v\"(r) : \"v\"(x[lane])); x[lane] = r;");
    ASSERT_EQ(outcome.error, "") << how;
    for (uint32_t l = 0; l < kLanes; ++l)
      EXPECT_EQ(outcome.words[l], 100 + expected(l)) << how << ", lane " << l;
  }
}

TEST_F(IsaDetectors, TheFirstLaneThatIsOnOfNone) {
  expect_error(run("u r; asm volatile(\"s_mov_b32 exec_lo, 0\\nv_readfirstlane_b32 %0, "
                   "%1\\ns_mov_b32 exec_lo, -1\" : \"=s\"(r) : "
                   "\"v\"(lane)); x[lane] = r;"),
               "reads the first lane that is on, and none is");
}

// One of two waves does not arrive, or arrives before it has stored what the others wait for.
TEST_F(IsaDetectors, BarriersThatNotAllComeTo) {
  constexpr int kTwoWaves = 64;
  const std::string first_wave = "if (__builtin_amdgcn_readfirstlane(lane) == 0) { asm volatile(\"";
  expect_error(run(first_wave + "s_barrier\"); } x[lane] = 1;", "gfx1100", kTwoWaves),
               "another wave has ended without it");
  expect_error(run(first_wave + "s_barrier_signal -1\\ns_barrier_wait -1\"); } x[lane] = 1;",
                   "gfx1201", kTwoWaves),
               "another wave has ended without it");
  expect_error(run("asm volatile(\"s_barrier_wait -1\"); x[lane] = 1;", "gfx1201"),
               "waits for a barrier that this wave did not come to");
  expect_error(run("__attribute__((shared)) static u lds[64]; lds[lane] = 1; asm "
                   "volatile(\"ds_store_b32 %0, %0\\ns_barrier\" : : "
                   "\"v\"(lane * 4) : \"memory\"); x[lane] = lds[lane];",
                   "gfx1100", kTwoWaves),
               "LDS may not have what this wave stored");
  EXPECT_EQ(run("__attribute__((shared)) static u lds[64]; lds[lane] = lane; "
                "__builtin_amdgcn_s_barrier(); x[lane] = lds[63 - lane];",
                "gfx1100", kTwoWaves)
                .error,
            "");
}

// Every counter: for memory, LDS and scalar loads, on chips that count them together and apart.
TEST_F(IsaDetectors, LoadsThatAreNotWaitedFor) {
  const std::string not_waited = "load was not waited for";
  const auto loads = [](const std::string& lines, const std::string& arch) {
    return run("u a, b; asm volatile(\"" + lines +
                   "\" : \"=&v\"(a), \"=&v\"(b) : \"v\"(x + lane), \"v\"(lane * 4), \"s\"(x)); "
                   "x[lane] = a + b; "
                   "__attribute__((shared)) static u lds[64]; if (x == 0) lds[lane] = 1;",
               arch, arch == "gfx942" ? 64 : 32);
  };
  const std::string two = "global_load_b32 %0, %2, off\\nglobal_load_b32 %1, %2, off\\n",
                    use = "\\nv_mov_b32 %0, %1";
  expect_error(loads(two + "s_waitcnt vmcnt(1)" + use, "gfx1100"), not_waited);
  EXPECT_EQ(loads(two + "s_waitcnt vmcnt(0)" + use, "gfx1100").error, "");
  EXPECT_EQ(
      loads(two + "s_waitcnt vmcnt(1)\\nv_mov_b32 %0, %0\\ns_waitcnt vmcnt(0)", "gfx1100").error,
      "")
      << "they come in order";
  expect_error(loads(two + "s_wait_dscnt 0" + use, "gfx1201"), not_waited);
  EXPECT_EQ(loads(two + "s_wait_loadcnt 0" + use, "gfx1201").error, "");
  // gfx9 counts stores with loads: the load is complete when one less is outstanding.
  const std::string stored =
      "global_load_dword %0, %2, off\\nglobal_load_dword %1, %2, off\\nglobal_store_dword %2, %3, "
      "off\\n";
  EXPECT_EQ(loads(stored + "s_waitcnt vmcnt(1)" + use, "gfx942").error, "");
  expect_error(loads(stored + "s_waitcnt vmcnt(2)" + use, "gfx942"), not_waited);
  // A register that an outstanding load will write is overwritten.
  expect_error(
      loads("global_load_b32 %0, %2, off\\nv_mov_b32 %0, 0\\ns_waitcnt vmcnt(0)\\nv_mov_b32 %1, 0",
            "gfx1100"),
      "overwrites a register");
  expect_error(run("u a; asm volatile(\"s_load_b32 s20, %1, 0x0\\nv_mov_b32 %0, s20\" : \"=v\"(a) "
                   ": \"s\"(x) : \"s20\"); x[lane] = a;"),
               not_waited);
  expect_error(run("u a; asm volatile(\"s_load_b32 s20, %1, 0x0\\ns_wait_dscnt 0\\nv_mov_b32 %0, "
                   "s20\" : \"=v\"(a) : \"s\"(x) : "
                   "\"s20\"); x[lane] = a;",
                   "gfx1201"),
               not_waited);
  expect_error(run("__attribute__((shared)) static u lds[32]; lds[lane] = lane; u a; asm "
                   "volatile(\"ds_load_b32 %0, %1\\nv_mov_b32 "
                   "%0, %0\" : "
                   "\"=&v\"(a) : \"v\"(lane * 4)); x[lane] = a + lds[31 - lane];"),
               not_waited);
}

// What a load brings to LDS is there for its own wave after the wait, for others after a barrier
// behind the wait.
TEST_F(IsaDetectors, LoadsToLdsThatAreNotWaitedFor) {
  const auto loads = [](const std::string& between, const std::string& place) {
    return run(
        "__attribute__((shared)) static u lds[128]; lds[lane] = 1; u r; "
        "asm volatile(\"s_mov_b32 m0, %3\\ns_nop 4\\nglobal_load_lds_dword %1, off\\n" +
            between +
            "\\nds_read_b32 %0, %2\\ns_waitcnt lgkmcnt(0)\" : \"=&v\"(r) : \"v\"(x + "
            "lane), \"v\"(" +
            place +
            " * 4), \"s\"(__builtin_amdgcn_readfirstlane(lane) * 4) : \"memory\"); "
            "x[lane] = r + (lane > 200 ? lds[x[lane] % 128] : 0);",
        "gfx942", 128);
  };
  const std::string not_waited = "which a load brings that was not waited for",
                    wait = "s_waitcnt vmcnt(0)", barrier = "\\ns_barrier";
  expect_error(loads("", "lane"), not_waited);
  const Outcome own = loads(wait, "lane");
  ASSERT_EQ(own.error, "");
  for (uint32_t l = 0; l < 128; ++l) EXPECT_EQ(own.words[l], 100 + l);
  const std::string others = "(lane ^ 64u)";
  expect_error(loads("s_waitcnt lgkmcnt(0)" + barrier, others), not_waited);
  const Outcome exchanged = loads(wait + " lgkmcnt(0)" + barrier, others);
  ASSERT_EQ(exchanged.error, "");
  for (uint32_t l = 0; l < 128; ++l) EXPECT_EQ(exchanged.words[l], 100 + (l ^ 64U));
}

// Spilled registers: a kernel reads back what it keeps in scratch, and must not read beyond.
TEST_F(IsaDetectors, SpilledRegistersComeBack) {
  for (const char* arch : {"gfx1100", "gfx1201", "gfx942"}) {
    const int lanes = arch == std::string("gfx942") ? 64 : 32;
    const std::string body =
        "u a[40];\n#pragma unroll\nfor (u i = 0; i < 40; ++i) a[i] = x[(lane + i) % " +
        std::to_string(lanes) +
        "] * (i + 1);\n#pragma unroll\nfor (u i = 0; i < 40; ++i) asm volatile(\"\" : "
        "\"+v\"(a[i]));\nu sum = 0;\n"
        "#pragma unroll\nfor (u i = 0; i < 40; ++i) sum = sum * 3 + a[39 - i];\nx[lane] = sum;";
    const Outcome outcome = run(body, arch, lanes, "amdgpu_num_vgpr(24)");
    ASSERT_EQ(outcome.error, "") << arch;
    EXPECT_GT(outcome.counts[static_cast<std::size_t>(gpu::isa::Kind::scratch)], 0U)
        << arch << ": nothing was spilled";
    for (int l = 0; l < lanes; ++l) {
      uint32_t sum = 0;
      for (uint32_t i = 0; i < 40; ++i)
        sum = sum * 3 +
              (100 + (static_cast<uint32_t>(l) + 39 - i) % static_cast<uint32_t>(lanes)) * (40 - i);
      EXPECT_EQ(outcome.words[static_cast<std::size_t>(l)], sum) << arch << ", lane " << l;
    }
  }
  expect_error(run("u r; asm volatile(\"scratch_load_b32 %0, off, off offset:512\\ns_waitcnt "
                   "vmcnt(0)\" : \"=v\"(r)); x[lane] = r;"),
               "reads 4 bytes of scratch at 512");
}

// Seven instructions and their exceptions: rounded once, whatever the operands.
TEST_F(IsaDetectors, DividesAsTheHostDoes) {
  const std::string body =
      "float a = __builtin_bit_cast(float, (x[lane] - 100) * 2654435761u), b = "
      "__builtin_bit_cast(float, (x[lane] - 87) * "
      "2246822519u); if (lane == 1) b = 0; if (lane == 2) a = b; if (lane == 3) { a = 0x1p-149f; b "
      "= 3; } "
      "if (lane == 4) { a = 0x1p127f; b = 0x1p-20f; } if (lane == 5) { a = 0x1p-120f; b = "
      "0x1.8p20f; } "
      "x[lane] = __builtin_bit_cast(u, a / b);";
  for (const char* arch : {"gfx1100", "gfx1201"}) {
    const Outcome outcome = run(body, arch);
    ASSERT_EQ(outcome.error, "");
    for (uint32_t l = 0; l < kLanes; ++l) {
      float a = std::bit_cast<float>(l * 2654435761U),
            b = std::bit_cast<float>((l + 13) * 2246822519U);
      if (l == 1) b = 0;
      if (l == 2) a = b;
      if (l == 3) a = 0x1p-149F, b = 3;
      if (l == 4) a = 0x1p127F, b = 0x1p-20F;
      if (l == 5) a = 0x1p-120F, b = 0x1.8p20F;
      const float expected = a / b, got = std::bit_cast<float>(outcome.words[l]);
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(got)
                                       : std::bit_cast<uint32_t>(expected) == outcome.words[l])
          << arch << ", lane " << l << ": " << a << " / " << b << " is " << got;
    }
  }
}

TEST_F(IsaDetectors, MemoryOutsideOfAllocations) {
  expect_error(run("x[lane + 32] = 1;"), "writes 4 bytes");
  expect_error(run("x[lane] = x[lane + 100];"), "that is in no allocation");
}

TEST_F(IsaDetectors, LdsOutsideOfTheWorkgroup) {
  expect_error(run("u r; asm volatile(\"ds_load_b32 %0, %1\\ns_waitcnt lgkmcnt(0)\" : \"=v\"(r) : "
                   "\"v\"(lane * 4 + 4096)); x[lane] = r;"),
               "of LDS at 4096");
  // Counting its cycles looks at the address first.
  expect_error(run("u r; asm volatile(\"ds_load_b32 %0, %1\\ns_waitcnt lgkmcnt(0)\" : \"=v\"(r) : "
                   "\"v\"(lane * 4 - 8)); x[lane] = r;"),
               "of LDS at 4294967288");
}

TEST_F(IsaDetectors, ALoadThatIsNotWaitedFor) {
  expect_error(run("u r; asm volatile(\"global_load_b32 %0, %1, off\\nv_mov_b32 %0, %0\" : "
                   "\"=&v\"(r) : \"v\"(x + lane)); x[lane] = r;"),
               "reads a register whose load was not waited for");
}

TEST_F(IsaDetectors, AnInstructionThatItDoesNotKnow) {
  expect_error(
      run("u r; asm volatile(\"v_sin_f32 %0, %1\" : \"=v\"(r) : \"v\"(lane)); x[lane] = r;"),
      "v_sin_f32");
}

TEST_F(IsaDetectors, RegistersThatNothingWroteHoldAnything) {
  const std::string body =
      "u r; asm volatile(\"v_mov_b32 %0, v200\" : \"=v\"(r) : : \"v200\"); x[lane] = r;";
  ASSERT_TRUE(gpu::isa::set_schedule("random:1").ok());
  const Outcome one = run(body);
  ASSERT_TRUE(gpu::isa::set_schedule("random:2").ok());
  const Outcome other = run(body);
  ASSERT_TRUE(gpu::isa::set_schedule("in-order").ok());
  ASSERT_EQ(one.error, "");
  EXPECT_NE(one.words, other.words);
}

TEST_F(IsaDetectors, AMatrixInstructionWhereLanesAreOff) {
  expect_error(run("typedef float F8 __attribute__((ext_vector_type(8))); typedef u U8 "
                   "__attribute__((ext_vector_type(8)));"
                   "if (lane < 16) { F8 c = {}; U8 a = {}; asm volatile(\"v_wmma_f32_16x16x16_f16 "
                   "%0, %1, %1, %0\" : \"+v\"(c) : \"v\"(a));"
                   "x[lane] = c[0]; }"),
               "where lanes are off");
}

TEST_F(IsaDetectors, AStepOutOfTheOrdersIsRefused) {
  EXPECT_FALSE(gpu::isa::set_schedule("sideways").ok());
  EXPECT_FALSE(gpu::isa::set_schedule("random:").ok());
}

TEST_F(IsaDetectors, CountsInstructions) {
  const Outcome outcome = run("x[lane] = lane;");
  ASSERT_EQ(outcome.error, "");
  const gpu::isa::Counts& counts = outcome.counts;
  EXPECT_EQ(counts[static_cast<std::size_t>(gpu::isa::Kind::global)], 1U);
  EXPECT_GT(counts[static_cast<std::size_t>(gpu::isa::Kind::valu)], 0U);
}

}  // namespace
}  // namespace fulmen::testing
