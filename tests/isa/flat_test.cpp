// Flat accesses: each lane's address is of memory, of LDS or of scratch.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "isa/machine.h"

namespace fulmen::testing {
namespace {

constexpr int kAddress = 2, kData = 4, kBytesOfScratch = 64;

class IsaFlat : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  }
  // The name of an access of `words` words.
  static std::string access(const std::string& which, int words) {
    if (!GetParam().starts_with("gfx9")) return "flat_" + which + "_b" + std::to_string(32 * words);
    return "flat_" + which + "_dword" + (words > 1 ? "x" + std::to_string(words) : "");
  }
  static std::string data(int words) {
    return words > 1 ? "v[4:" + std::to_string(3 + words) + "]" : "v4";
  }

  // Assembles the lines behind two that read where LDS and scratch begin, and runs these two.
  void start(std::vector<std::string> lines) {
    lines.insert(lines.begin(),
                 {"s_mov_b64 s[4:5], src_shared_base", "s_mov_b64 s[6:7], src_private_base"});
    auto assembled = assemble(lines, GetParam());
    ASSERT_TRUE(assembled.ok()) << assembled.status().message();
    assembled_ = std::make_unique<Assembled>(std::move(assembled).value());
    assembled_->program.scratch_bytes = kBytesOfScratch;
    machine_ = std::make_unique<Machine>(assembled_->program);
    machine_->give_memory(std::as_writable_bytes(std::span(memory_)));
    gpu::isa::Wave& w = machine_->wave();
    w.group->lds = std::as_writable_bytes(std::span(lds_));
    scratch_.resize(static_cast<std::size_t>(kBytesOfScratch / 4 * machine_->size()));
    w.scratch = std::as_writable_bytes(std::span(scratch_)).data();
    w.scalars[gpu::kExecLow] = 0xFFFFFFFFU;
    w.scalars[gpu::kExecLow + 1] = machine_->size() == 64 ? 0xFFFFFFFFU : 0;
    for (std::size_t n = 0; n < memory_.size(); ++n) memory_[n] = static_cast<uint32_t>(1000 + n);
    for (std::size_t n = 0; n < lds_.size(); ++n) lds_[n] = static_cast<uint32_t>(5000 + n);
    for (std::size_t n = 0; n < scratch_.size(); ++n)
      scratch_[n] = static_cast<uint32_t>(90000 + n);
    ASSERT_EQ(machine_->run(assembled_->code[0]), "");
    ASSERT_EQ(machine_->run(assembled_->code[1]), "");
  }
  // Word n of what lane l's address is of: memory, LDS and scratch in turn.
  uint32_t& place(int l, int n) {
    const auto lane = static_cast<std::size_t>(l), word = static_cast<std::size_t>(n);
    if (l % 3 == 0) return memory_[4 * lane + word];
    if (l % 3 == 1) return lds_[4 * lane + word];
    return scratch_[lane * (kBytesOfScratch / 4) + word];
  }
  // The addresses, less the offset that the instruction adds.
  void point(int offset) {
    for (int l = 0; l < machine_->size(); ++l) {
      const auto& s = machine_->wave().scalars;
      uint64_t at = reinterpret_cast<uint64_t>(&place(l, 0));
      if (l % 3 == 1) at = (s[4] | uint64_t{s[5]} << 32U) + static_cast<uint64_t>(16 * l);
      if (l % 3 == 2) at = (s[6] | uint64_t{s[7]} << 32U);
      at -= static_cast<uint64_t>(offset);
      machine_->vector(kAddress, l) = static_cast<uint32_t>(at);
      machine_->vector(kAddress + 1, l) = static_cast<uint32_t>(at >> 32U);
    }
  }
  std::string run() { return machine_->run(assembled_->code[2]); }

  std::unique_ptr<Assembled> assembled_;
  std::unique_ptr<Machine> machine_;
  std::array<uint32_t, 256> memory_{}, lds_{};
  std::vector<uint32_t> scratch_;
};

TEST_P(IsaFlat, LoadsFromWhereItsAddressIs) {
  for (int words = 1; words <= 4; ++words) {
    for (const int offset : {0, 2044}) {
      start({access("load", words) + " " + data(words) + ", v[2:3]" +
             (offset != 0 ? " offset:" + std::to_string(offset) : "")});
      point(offset);
      ASSERT_EQ(run(), "");
      for (int l = 0; l < machine_->size(); ++l) {
        for (int n = 0; n < words; ++n)
          ASSERT_EQ(machine_->vector(kData + n, l), place(l, n)) << words << ": lane " << l;
      }
    }
  }
}

TEST_P(IsaFlat, StoresThereAndNowhereElse) {
  for (int words = 1; words <= 4; ++words) {
    start({access("store", words) + " v[2:3], " + data(words)});
    point(0);
    const auto memory = memory_, lds = lds_;
    const std::vector<uint32_t> scratch = scratch_;
    for (int l = 0; l < machine_->size(); ++l) {
      for (int n = 0; n < 4; ++n)
        machine_->vector(kData + n, l) = static_cast<uint32_t>(7000000 + 10 * l + n);
    }
    machine_->wave().scalars[gpu::kExecLow] &= ~(7U << 3U);  // three lanes are off
    ASSERT_EQ(run(), "");
    const auto now_memory = memory_, now_lds = lds_;
    const std::vector<uint32_t> now_scratch = scratch_;
    memory_ = memory, lds_ = lds, scratch_ = scratch;
    for (int l = 0; l < machine_->size(); ++l) {
      for (int n = 0; n < words && (l < 3 || l > 5); ++n)
        place(l, n) = static_cast<uint32_t>(7000000 + 10 * l + n);
    }
    EXPECT_EQ(now_memory, memory_) << words;
    EXPECT_EQ(now_lds, lds_) << words;
    EXPECT_EQ(now_scratch, scratch_) << words;
  }
}

TEST_P(IsaFlat, RefusesWhatLiesOutside) {
  start({access("load", 2) + " v[4:5], v[2:3]"});
  const auto error_of = [&](int lane, uint64_t at) {
    point(0);
    machine_->vector(kAddress, lane) = static_cast<uint32_t>(at);
    machine_->vector(kAddress + 1, lane) = static_cast<uint32_t>(at >> 32U);
    return run();
  };
  const auto& s = machine_->wave().scalars;
  const uint64_t shared = uint64_t{s[5]} << 32U, private_base = uint64_t{s[7]} << 32U;
  EXPECT_NE(error_of(0, reinterpret_cast<uint64_t>(memory_.data() + 255)).find("no allocation"),
            std::string::npos);
  EXPECT_NE(error_of(1, shared + sizeof lds_ - 4).find("of LDS"), std::string::npos);
  EXPECT_NE(error_of(2, private_base + kBytesOfScratch - 4).find("of scratch"), std::string::npos);
  EXPECT_EQ(error_of(2, private_base + kBytesOfScratch - 8), "");
}

// A kernel of CDNA2 sets where scratch is before it has flat accesses.
TEST(IsaFlatScratch, IsSetToNoEffect) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const auto assembled = assemble(
      {"s_add_u32 flat_scratch_lo, s6, s9", "s_addc_u32 flat_scratch_hi, s7, 0"}, "gfx90a");
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  m.wave().scalars[6] = 0xFFFFFFFFU;
  m.wave().scalars[9] = 1;
  const auto before = m.wave().scalars;
  ASSERT_EQ(m.run(assembled->code[0]), "");
  EXPECT_TRUE(m.wave().scc);
  ASSERT_EQ(m.run(assembled->code[1]), "");
  EXPECT_FALSE(m.wave().scc);
  EXPECT_EQ(m.wave().scalars, before);
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaFlat,
                         ::testing::Values("gfx90a", "gfx942", "gfx1100", "gfx1201"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing
