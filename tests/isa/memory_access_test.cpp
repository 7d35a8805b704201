// Accesses of memory through buffer descriptors, atomics and loads to LDS, against what the ISA
// documents say of each word (CDNA4 ISA, 9.1.5 and 9.1.9; docs/internals/amd_facts.md).
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "isa/machine.h"
#include "isa/manual.h"

namespace fulmen::testing {
namespace {

constexpr int kData = 4, kAddress = 8, kIndex = 10, kDescriptor = 4;
constexpr uint32_t kUntouched = 0xDEADBEEFU;

class IsaMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  }
};

// A wave with a buffer of `records` over the first words of `words`, all lanes on.
struct WaveWithBuffer {
  WaveWithBuffer(const std::vector<std::string>& lines, const std::string& arch, uint32_t records,
                 uint32_t stride = 0)
      : assembled(assemble(lines, arch)) {
    if (!assembled.ok()) return;
    machine = std::make_unique<Machine>(assembled->program);
    std::iota(words.begin(), words.end(), 1000U);
    machine->give_memory(std::as_writable_bytes(std::span(words)));
    gpu::isa::Wave& w = machine->wave();
    w.group->lds = std::as_writable_bytes(std::span(lds));
    std::fill(lds.begin(), lds.end(), kUntouched);
    w.scalars[gpu::kExecLow] = 0xFFFFFFFFU;
    w.scalars[gpu::kExecLow + 1] = machine->size() == 64 ? 0xFFFFFFFFU : 0;
    const auto base = reinterpret_cast<uint64_t>(words.data());
    w.scalars[kDescriptor] = static_cast<uint32_t>(base);
    w.scalars[kDescriptor + 1] = static_cast<uint32_t>(base >> 32U) | stride << 16U;
    w.scalars[kDescriptor + 2] = records;
    w.scalars[kDescriptor + 3] = arch.starts_with("gfx9") ? 0x20000U : 0x31016000U;
    for (int l = 0; l < machine->size(); ++l) {
      for (int n = 0; n < 4; ++n) machine->vector(kData + n, l) = data(l, n);
    }
  }
  static uint32_t data(int lane, int word) {
    return static_cast<uint32_t>(0x01010000 * (word + 1) + 16 * lane + word);
  }
  void run(std::size_t line = 0) { ASSERT_EQ(machine->run(assembled->code[line]), ""); }

  Result<Assembled> assembled;
  std::unique_ptr<Machine> machine;
  std::vector<uint32_t> words = std::vector<uint32_t>(1024), lds = std::vector<uint32_t>(2048);
};

// Lanes 20 bytes apart, of which the last ones lie past the end as a whole or in part.
TEST_F(IsaMemory, StoresToABufferStopAtItsEnd) {
  for (const std::string arch : {"gfx942", "gfx1100", "gfx1201"}) {
    const bool cdna = arch == "gfx942";
    for (int count = 1; count <= 4; ++count) {
      const std::string name = cdna ? "dword" + (count == 1 ? "" : "x" + std::to_string(count))
                                    : "b" + std::to_string(32 * count);
      const std::string data = count == 1 ? "v4" : "v[4:" + std::to_string(3 + count) + "]";
      constexpr uint32_t kRecords = 500, kScalar = 16, kConstant = 8;
      WaveWithBuffer s({"buffer_store_" + name + " " + data + ", v8, s[4:7], s3 offen offset:8"},
                       arch, kRecords);
      ASSERT_TRUE(s.assembled.ok()) << s.assembled.status().message();
      s.machine->wave().scalars[3] = kScalar;
      for (int l = 0; l < s.machine->size(); ++l)
        s.machine->vector(kAddress, l) = static_cast<uint32_t>(20 * l);
      s.run();
      std::vector<uint32_t> expected(s.words.size());
      std::iota(expected.begin(), expected.end(), 1000U);
      for (int l = 0; l < s.machine->size(); ++l) {
        for (int n = 0; n < count; ++n) {
          const auto at = static_cast<uint32_t>(20 * l + 4 * n) + kConstant + kScalar;
          if (at + 4 <= kRecords) expected[at / 4] = WaveWithBuffer::data(l, n);
        }
      }
      EXPECT_EQ(s.words, expected) << arch << " " << name;
    }
  }
}

TEST_F(IsaMemory, StoresOfPartsOfARegister) {
  for (const auto& [arch, byte, half, high] :
       {std::array<std::string, 4>{"gfx942", "byte", "short", "short_d16_hi"},
        {"gfx1100", "b8", "b16", "d16_hi_b16"}}) {
    WaveWithBuffer s({"buffer_store_" + byte + " v4, v8, s[4:7], 0 offen",
                      "buffer_store_" + half + " v4, v8, s[4:7], 0 offen offset:4",
                      "buffer_store_" + high + " v4, v8, s[4:7], 0 offen offset:8"},
                     arch, 4096);
    ASSERT_TRUE(s.assembled.ok()) << s.assembled.status().message();
    for (int l = 0; l < s.machine->size(); ++l) {
      s.machine->vector(kAddress, l) = static_cast<uint32_t>(12 * l);
      s.machine->vector(kData, l) = 0xABCD1234U + static_cast<uint32_t>(l);
    }
    for (std::size_t line = 0; line < 3; ++line) s.run(line);
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t x = 0xABCD1234U + l, before = 1000 + 3 * l;
      EXPECT_EQ(s.words[3 * l], (before & ~0xFFU) | (x & 0xFFU));
      EXPECT_EQ(s.words[3 * l + 1], ((before + 1) & ~0xFFFFU) | (x & 0xFFFFU));
      EXPECT_EQ(s.words[3 * l + 2], ((before + 2) & ~0xFFFFU) | x >> 16U);
    }
  }
}

// The index counts records; whether it is inside is all that is checked.
TEST_F(IsaMemory, RecordsOfABufferAreTakenByTheirIndex) {
  constexpr uint32_t kRecords = 40, kStride = 12;
  WaveWithBuffer s({"buffer_load_dword v4, v10, s[4:7], 0 idxen offset:4",
                    "buffer_load_dwordx2 v[4:5], v[10:11], s[4:7], s3 idxen offen",
                    "buffer_store_dword v4, v10, s[4:7], 0 idxen"},
                   "gfx942", kRecords, kStride);
  ASSERT_TRUE(s.assembled.ok()) << s.assembled.status().message();
  s.machine->wave().scalars[3] = 24;
  for (uint32_t l = 0; l < 64; ++l) {
    s.machine->vector(kIndex, static_cast<int>(l)) = l;
    s.machine->vector(kIndex + 1, static_cast<int>(l)) = 4;
  }
  s.run(0);
  for (uint32_t l = 0; l < 64; ++l)
    EXPECT_EQ(s.machine->vector(kData, static_cast<int>(l)), l < kRecords ? 1000 + 3 * l + 1 : 0);
  s.run(1);
  for (uint32_t l = 0; l < 64; ++l) {
    for (uint32_t n = 0; n < 2; ++n) {
      EXPECT_EQ(s.machine->vector(kData + static_cast<int>(n), static_cast<int>(l)),
                l < kRecords ? 1000 + 3 * l + 6 + 1 + n : 0);
    }
  }
  for (uint32_t l = 0; l < 64; ++l) s.machine->vector(kData, static_cast<int>(l)) = 7 * l;
  s.run(2);
  for (uint32_t l = 0; l < 64; ++l) EXPECT_EQ(s.words[3 * l], l < kRecords ? 7 * l : 1000 + 3 * l);
}

// Names of CDNA's atomics and what becomes of the number in memory.
struct Atomic {
  const char* name;
  uint32_t (*result)(uint32_t old, uint32_t data);
};
uint32_t half_sums(uint32_t a, uint32_t b, manual::Format format) {
  const auto sum = [&](int n) {
    return manual::bits(manual::number(a >> (16 * n) & 0xFFFFU, format) +
                            manual::number(b >> (16 * n) & 0xFFFFU, format),
                        format);
  };
  return static_cast<uint32_t>(sum(0) | sum(1) << 16U);
}
constexpr Atomic kAtomics[] = {
    {"add", [](uint32_t a, uint32_t b) { return a + b; }},
    {"sub", [](uint32_t a, uint32_t b) { return a - b; }},
    {"smin", [](uint32_t a, uint32_t b) { return manual::s32(a) < manual::s32(b) ? a : b; }},
    {"umin", [](uint32_t a, uint32_t b) { return a < b ? a : b; }},
    {"smax", [](uint32_t a, uint32_t b) { return manual::s32(a) > manual::s32(b) ? a : b; }},
    {"umax", [](uint32_t a, uint32_t b) { return a > b ? a : b; }},
    {"and", [](uint32_t a, uint32_t b) { return a & b; }},
    {"or", [](uint32_t a, uint32_t b) { return a | b; }},
    {"xor", [](uint32_t a, uint32_t b) { return a ^ b; }},
    {"inc", [](uint32_t a, uint32_t b) { return a >= b ? 0 : a + 1; }},
    {"dec", [](uint32_t a, uint32_t b) { return a == 0 || a > b ? b : a - 1; }},
    {"swap", [](uint32_t, uint32_t b) { return b; }},
    {"add_f32",
     [](uint32_t a, uint32_t b) {
       return static_cast<uint32_t>(
           manual::bits(manual::number(a, manual::kSingle) + manual::number(b, manual::kSingle),
                        manual::kSingle));
     }},
    {"pk_add_f16", [](uint32_t a, uint32_t b) { return half_sums(a, b, manual::kHalf); }}};

// Numbers of fp32 and of fp16 pairs whose sums are rounded; no half is NaN or large.
uint32_t operand(uint32_t n) {
  return (0x3C000000U + 0x00012345U * (n % 50) + (n % 7) * 0x100U) & ~0x4000U;
}

TEST_F(IsaMemory, AtomicsChangeMemoryAndReturnWhatItHeld) {
  std::vector<std::string> lines;
  for (const Atomic& a : kAtomics) {
    const std::string name = a.name;
    lines.push_back("buffer_atomic_" + name + " v4, v8, s[4:7], 0 offen sc0");
    lines.push_back("global_atomic_" + name + " v12, v8, v4, s[4:5] sc0");
    lines.push_back("buffer_atomic_" + name + " v4, v8, s[4:7], 0 offen");
  }
  WaveWithBuffer s(lines, "gfx942", 4 * 60);
  ASSERT_TRUE(s.assembled.ok()) << s.assembled.status().message();
  for (std::size_t line = 0; line < lines.size(); ++line) {
    const bool buffer = line % 3 != 1, returns = line % 3 != 2;
    for (uint32_t n = 0; n < s.words.size(); ++n) s.words[n] = operand(n + 3);
    for (uint32_t l = 0; l < 64; ++l) {
      s.machine->vector(kAddress, static_cast<int>(l)) = 4 * l;
      s.machine->vector(kData, static_cast<int>(l)) = operand(5 * l);
    }
    s.run(line);
    for (uint32_t l = 0; l < 64; ++l) {
      const bool inside = !buffer || l < 60;
      const uint32_t old = operand(l + 3), data = operand(5 * l);
      EXPECT_EQ(s.words[l], inside ? kAtomics[line / 3].result(old, data) : old)
          << lines[line] << ", lane " << l;
      const uint32_t got = s.machine->vector(buffer ? kData : 12, static_cast<int>(l));
      EXPECT_EQ(got, !returns ? data : inside ? old : 0) << lines[line] << ", lane " << l;
    }
  }
}

TEST_F(IsaMemory, LanesOfAnAtomicFollowEachOther) {
  WaveWithBuffer s(
      {"global_atomic_add v12, v8, v4, s[4:5] sc0", "global_atomic_add_x2 v8, v[4:5], s[4:5]",
       "global_atomic_cmpswap v12, v8, v[4:5], s[4:5] sc0",
       "global_atomic_pk_add_bf16 v8, v4, s[4:5]"},
      "gfx942", 4096);
  ASSERT_TRUE(s.assembled.ok()) << s.assembled.status().message();
  for (int l = 0; l < 64; ++l) {
    s.machine->vector(kAddress, l) = 0;
    s.machine->vector(kData, l) = 3;
  }
  s.run(0);
  EXPECT_EQ(s.words[0], 1000U + 3 * 64);
  for (uint32_t l = 0; l < 64; ++l)
    EXPECT_EQ(s.machine->vector(12, static_cast<int>(l)), 1000 + 3 * l);
  // A carry to the upper word.
  s.words[0] = 0xFFFFFFF0U;
  s.words[1] = 5;
  for (int l = 0; l < 64; ++l) s.machine->vector(kData + 1, l) = 0;
  s.run(1);
  EXPECT_EQ(s.words[0], 3 * 64 - 16U);
  EXPECT_EQ(s.words[1], 6U);
  // Lane l replaces l by l + 1.
  s.words[0] = 0;
  for (uint32_t l = 0; l < 64; ++l) {
    s.machine->vector(kData, static_cast<int>(l)) = l + 1;
    s.machine->vector(kData + 1, static_cast<int>(l)) = l == 50 ? 7 : l;
  }
  s.run(2);
  EXPECT_EQ(s.words[0], 50U) << "lane 50 compares with another number, then nobody's is right";
  for (uint32_t l = 0; l < 64; ++l)
    EXPECT_EQ(s.machine->vector(12, static_cast<int>(l)), std::min(l, 50U));
  s.words[0] = 0;
  for (int l = 0; l < 64; ++l) s.machine->vector(kData, l) = 0x3F80C000U;  // 1 and -2
  s.run(3);
  EXPECT_EQ(s.words[0], 0x4280C300U) << "64 and -128";
}

// A lane's words lie behind M0 and the instruction's offset, 4 bytes apart, or 16 for more than one
// word. Lanes that are off bring nothing, lanes outside of the buffer zeros.
TEST_F(IsaMemory, LoadsToLdsLieInTheOrderOfTheLanes) {
  for (const int count : {1, 3, 4}) {
    const std::string name = "dword" + (count == 1 ? "" : "x" + std::to_string(count));
    const std::string arch = count == 1 ? "gfx942" : "gfx950";
    for (const bool buffer : {true, false}) {
      constexpr uint32_t kRecords = 1000, kConstant = 32, kM0 = 256;
      WaveWithBuffer s({buffer ? "buffer_load_" + name + " v8, s[4:7], 0 offen offset:32 lds"
                               : "global_load_lds_" + name + " v8, s[4:5] offset:32"},
                       arch, kRecords);
      ASSERT_TRUE(s.assembled.ok()) << s.assembled.status().message();
      gpu::isa::Wave& w = s.machine->wave();
      w.scalars[gpu::kM0] = kM0;
      w.scalars[gpu::kExecLow] = ~4U;  // lane 2 is off
      for (uint32_t l = 0; l < 64; ++l)
        s.machine->vector(kAddress, static_cast<int>(l)) = 16 * (63 - l);
      s.run();
      std::vector<uint32_t> expected(s.lds.size(), kUntouched);
      for (uint32_t l = 0; l < 64; ++l) {
        for (uint32_t n = 0; n < static_cast<uint32_t>(count) && l != 2; ++n) {
          const uint32_t from = 16 * (63 - l) + kConstant + 4 * n;
          const bool inside = !buffer || from + 4 <= kRecords;
          expected[(kM0 + kConstant) / 4 + l * (count == 1 ? 1 : 4) + n] =
              inside ? 1000 + from / 4 : 0;
        }
      }
      EXPECT_EQ(s.lds, expected) << name << (buffer ? " of a buffer" : "");
    }
  }
}

// Each lane gives its number to the lane that it names; of several the last one's stays.
TEST_F(IsaMemory, LanesGiveNumbersToOthers) {
  for (const std::string arch : {"gfx942", "gfx1100"}) {
    const auto assembled = assemble({"ds_permute_b32 v4, v8, v9"}, arch);
    ASSERT_TRUE(assembled.ok()) << assembled.status().message();
    Machine m(assembled->program);
    const auto lanes = static_cast<uint32_t>(m.size());
    m.wave().scalars[gpu::kExecLow] = ~2U;  // lane 1 is off
    m.wave().scalars[gpu::kExecLow + 1] = lanes == 64 ? 0xFFFFFFFFU : 0;
    for (uint32_t l = 0; l < lanes; ++l) {
      m.vector(4, static_cast<int>(l)) = kUntouched;
      m.vector(8, static_cast<int>(l)) = 4 * (l / 2 + 10);  // above the wave's size it wraps
      m.vector(9, static_cast<int>(l)) = 100 + l;
    }
    ASSERT_EQ(m.run(assembled->code.front()), "");
    std::vector<uint32_t> expected(lanes, 0);
    for (uint32_t l = 0; l < lanes; ++l) {
      if (l != 1) expected[(l / 2 + 10) % lanes] = 100 + l;
    }
    expected[1] = kUntouched;
    for (uint32_t l = 0; l < lanes; ++l)
      EXPECT_EQ(m.vector(4, static_cast<int>(l)), expected[l]) << arch << ", lane " << l;
  }
}

}  // namespace
}  // namespace fulmen::testing
