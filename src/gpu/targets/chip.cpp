#include "gpu/targets/chip.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>

#include "gpu/targets/portable.h"
#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

bool parse(std::string_view digits, int base, int& value) {
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

bool is_amd(std::string_view arch) { return arch.starts_with("gfx"); }

// The digits of "sm_90a": 90. AMD's chips, whose numbers are of several bases, have 0.
int nvidia_number(std::string_view arch) {
  int number = 0;
  if (!is_amd(arch)) parse(arch.substr(3, arch.find_last_of("0123456789") - 2), 10, number);
  return number;
}

std::vector<Chip> rows_of_targets() {
  std::vector<Chip> rows;
  const auto add = [&](const Target& target) {
    for (const ChipFacts& facts : target.chips) {
      rows.push_back({facts, is_amd(facts.arch) ? Vendor::amd : Vendor::nvidia, &target});
    }
  };
  for (const Target* target : targets()) add(*target);
  add(kPortable);
  std::sort(rows.begin(), rows.end(), [](const Chip& a, const Chip& b) {
    return std::tuple(a.vendor, nvidia_number(a.arch), a.arch) <
           std::tuple(b.vendor, nvidia_number(b.arch), b.arch);
  });
  return rows;
}

// An AMD chip without a row: no matrix instructions are known of it. RDNA (gfx10 and later) runs
// wave32.
bool unknown_amd(std::string_view arch, Chip& chip) {
  int number = 0;
  if (!parse(arch.substr(3), 16, number) || arch.size() < 6 || number < 0x803) return false;
  chip = {{.arch = arch, .wave_size = number >= 0x1000 ? 32 : 64, .register_file = 1024 * 32},
          Vendor::amd,
          &kPortable};
  return true;
}

// An NVIDIA chip without a row is served like the nearest one below it.
bool unknown_nvidia(std::string_view arch, Chip& chip) {
  std::string_view digits = arch.substr(3);
  if (!digits.empty() && (digits.back() == 'a' || digits.back() == 'f')) digits.remove_suffix(1);
  int number = 0;
  if (!parse(digits, 10, number) || number < 70) return false;
  int best = 0;
  for (const Chip& row : chips()) {
    int other = 0;
    if (row.vendor == Vendor::nvidia && parse(row.arch.substr(3), 10, other) && other <= number &&
        other >= best) {
      best = other;
      chip = row;
    }
  }
  chip.arch = arch;
  chip.products = "";
  return true;
}

}  // namespace

const std::vector<Chip>& chips() {
  constinit static MadeOnce<const std::vector<Chip>> made;
  return made.get(rows_of_targets);
}

bool find_chip(std::string_view name, std::string& storage, Chip& chip) {
  storage = name.substr(0, name.find(':'));  // without target features
  const std::string_view arch = storage;
  const auto row =
      std::find_if(chips().begin(), chips().end(), [&](const Chip& c) { return c.arch == arch; });
  if (row != chips().end()) {
    chip = *row;
    return true;
  }
  if (is_amd(arch)) return unknown_amd(arch, chip);
  return arch.starts_with("sm_") && unknown_nvidia(arch, chip);
}

}  // namespace fulmen::gpu
