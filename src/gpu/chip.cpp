#include "gpu/chip.h"

#include <algorithm>
#include <charconv>

#include "gpu/targets/cdna3.h"
#include "gpu/targets/gfx11.h"
#include "gpu/targets/gfx12.h"
#include "gpu/targets/portable.h"
#include "gpu/targets/sm80.h"
#include "gpu/targets/sm90.h"

namespace fulmen::gpu {
namespace {

// LDS: a CDNA3 or RDNA workgroup has 64 KiB; NVIDIA's opt-in maxima are 163 KiB (sm_80), 227 KiB (sm_90), 99 KiB (sm_86, sm_89,
// sm_120), 96 KiB (sm_70), 64 KiB (sm_75). Registers: RDNA3's larger parts have 1536 x 32 lanes a SIMD, its small ones (gfx1102,
// gfx1103) 1024 x 32; CDNA3 512 x 64, half of them accumulators.
constexpr int kKiB = 1024;
const std::vector<Chip> kChips{
    {"gfx1100", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1536 * 32, "RX 7900"},
    {"gfx1101", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1536 * 32, "RX 7800, 7700"},
    {"gfx1102", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1024 * 32, "RX 7600"},
    {"gfx1103", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1024 * 32, "Radeon 780M, 760M"},
    {"gfx1150", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1024 * 32, "Radeon 890M (Ryzen AI 300)"},
    {"gfx1151", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1536 * 32, "Radeon 8060S (Ryzen AI Max)"},
    {"gfx1152", Vendor::amd, &kGfx11, 32, 64 * kKiB, 256, 1024 * 32, "Radeon 860M, 840M"},
    {"gfx1200", Vendor::amd, &kGfx12, 32, 64 * kKiB, 256, 1536 * 32, "RX 9060"},
    {"gfx1201", Vendor::amd, &kGfx12, 32, 64 * kKiB, 256, 1536 * 32, "RX 9070"},
    {"gfx942", Vendor::amd, &kCdna3, 64, 64 * kKiB, 512, 512 * 64, "Instinct MI300, MI325"},
    {"sm_70", Vendor::nvidia, &kPortable, 32, 96 * kKiB, 255, 65536, "V100"},
    {"sm_75", Vendor::nvidia, &kPortable, 32, 64 * kKiB, 255, 65536, "RTX 20, T4"},
    {"sm_80", Vendor::nvidia, &kSm80, 32, 163 * kKiB, 255, 65536, "A100"},
    {"sm_86", Vendor::nvidia, &kSm80, 32, 99 * kKiB, 255, 65536, "RTX 30"},
    {"sm_89", Vendor::nvidia, &kSm80, 32, 99 * kKiB, 255, 65536, "RTX 40, L40"},
    {"sm_90", Vendor::nvidia, &kSm80, 32, 227 * kKiB, 255, 65536, "H100, H200"},
    {"sm_90a", Vendor::nvidia, &kSm90, 32, 227 * kKiB, 255, 65536, "H100, H200"},
    {"sm_100", Vendor::nvidia, &kSm80, 32, 227 * kKiB, 255, 65536, "B200"},
    {"sm_120", Vendor::nvidia, &kSm80, 32, 99 * kKiB, 255, 65536, "RTX 50"},
};

bool parse(std::string_view digits, int base, int& value) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

// An AMD chip without a row: no matrix instructions are known of it. RDNA (gfx10 and later) runs wave32.
bool unknown_amd(std::string_view arch, Chip& chip) {
  int number = 0;
  if (!parse(arch.substr(3), 16, number) || arch.size() < 6 || number < 0x803) return false;
  chip = {arch, Vendor::amd, &kPortable, number >= 0x1000 ? 32 : 64, 64 * kKiB, 256, 1024 * 32, ""};
  return true;
}

// An NVIDIA chip without a row is served like the nearest one below it.
bool unknown_nvidia(std::string_view arch, Chip& chip) {
  std::string_view digits = arch.substr(3);
  if (!digits.empty() && (digits.back() == 'a' || digits.back() == 'f')) digits.remove_suffix(1);
  int number = 0;
  if (!parse(digits, 10, number) || number < 70) return false;
  int best = 0;
  for (const Chip& row : kChips) {
    int other = 0;
    if (row.vendor == Vendor::nvidia && parse(row.arch.substr(3), 10, other) && other <= number && other >= best) {
      best = other;
      chip = row;
    }
  }
  chip.arch = arch;
  chip.products = "";
  return true;
}

}  // namespace

const std::vector<Chip>& chips() { return kChips; }

bool find_chip(std::string_view name, std::string& storage, Chip& chip) {
  storage = name.substr(0, name.find(':'));  // without target features
  const std::string_view arch = storage;
  const auto row = std::find_if(kChips.begin(), kChips.end(), [&](const Chip& c) { return c.arch == arch; });
  if (row != kChips.end()) {
    chip = *row;
    return true;
  }
  if (arch.starts_with("gfx")) return unknown_amd(arch, chip);
  return arch.starts_with("sm_") && unknown_nvidia(arch, chip);
}

}  // namespace fulmen::gpu
