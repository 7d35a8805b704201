// Results of memory, LDS and scalar loads that are used or overwritten before they were waited for,
// and barriers that do not wait for a wave's own stores to LDS.
//
// Counters give what is outstanding: of loads from memory (vmcnt; gfx12: loadcnt), of LDS (lgkmcnt;
// dscnt) and of scalar loads (lgkmcnt; kmcnt). Waiting for N of a counter means that all but the N
// latest are there, as memory and LDS answer in order each. Scalar loads do not: only a wait for 0
// has them, and where they share a counter with LDS only that has LDS's, too. The same holds of
// flat loads, which may be either. gfx9 counts stores with the loads.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "gpu/compile/amd_rules/rules.h"
#include "gpu/compile/report/disassembly_line.h"

namespace fulmen::gpu {
namespace {

constexpr int kMost = 64;  // no counter has more
constexpr std::size_t kLdsStores = kSlots;

// One counter's state for each register: 0, or kMost less the number of later instructions that
// count. The greatest value over several paths is that of the path that waits least.
using Outstanding = std::array<uint8_t, kSlots + 1>;

struct Waiting {
  Outstanding memory{}, lds{}, scalar{};
  // What may be outstanding that comes in any order: only waiting for 0 means anything then.
  bool flat_memory = false, flat_lds = false, scalars = false;
};

void count_one(Outstanding& counter) {
  for (uint8_t& age : counter) age = age > 1 ? static_cast<uint8_t>(age - 1) : age;
}

void wait_for(Outstanding& counter, int64_t left, bool in_order) {
  if (left > 0 && !in_order) return;
  for (uint8_t& age : counter) {
    if (age != 0 && kMost - age >= left) age = 0;
  }
}

int64_t number(std::string_view text) {
  int64_t value = 0;
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  std::from_chars(text.data(), text.data() + text.size(), value, hexadecimal ? 16 : 10);
  return value;
}

void wait_for_memory(Waiting& w, int64_t left) {
  wait_for(w.memory, left, !w.flat_memory);
  if (left == 0) w.flat_memory = false;
}
void wait_for_scalars(Waiting& w, int64_t left) {
  if (left > 0) return;
  w.scalar.fill(0);
  w.scalars = false;
}
void wait_for_lds(Waiting& w, int64_t left, bool shared) {
  wait_for(w.lds, left, !w.flat_lds && !(shared && w.scalars));
  if (left == 0) w.flat_lds = false;
  if (shared) wait_for_scalars(w, left);
}

// s_waitcnt of gfx9 to gfx11: "vmcnt(3) lgkmcnt(0)".
void wait_for_counters(std::string_view operands, Waiting& w) {
  for (const std::string_view counter : {"vmcnt(", "lgkmcnt("}) {
    const std::size_t at = operands.find(counter);
    if (at == std::string_view::npos) continue;
    const int64_t left = number(operands.substr(at + counter.size()));
    if (counter == "vmcnt(") {
      wait_for_memory(w, left);
    } else {
      wait_for_lds(w, left, true);
    }
  }
}

bool wait(const AmdInstruction& at, Waiting& w) {
  if (!at.name.starts_with("s_wait")) return false;
  if (at.name == "s_waitcnt") wait_for_counters(at.operands, w);
  // "null, 0x0" of gfx11.
  const std::string_view last = at.operands.substr(at.operands.rfind(' ') + 1);
  const int64_t left = number(last);
  if (at.name == "s_waitcnt_vmcnt" || at.name == "s_wait_loadcnt") wait_for_memory(w, left);
  if (at.name == "s_waitcnt_lgkmcnt") wait_for_lds(w, left, true);
  if (at.name == "s_wait_dscnt") wait_for_lds(w, left, false);
  if (at.name == "s_wait_kmcnt") wait_for_scalars(w, left);
  const bool pair = at.name == "s_wait_loadcnt_dscnt";
  if (pair) wait_for_memory(w, left >> 8);
  if (pair || at.name == "s_wait_storecnt_dscnt") wait_for_lds(w, left & 0xff, false);
  if (at.name == "s_wait_idle") w = {};
  return true;
}

enum class Kind { none, memory, stores, lds, flat, scalar, message };

Kind kind_of(const AmdInstruction& at, bool stores_count_with_loads) {
  const std::string_view name = at.name;
  if (begins_with_any(name, {"s_load_", "s_buffer_load_", "s_memtime", "s_memrealtime"}))
    return Kind::scalar;
  if (name.starts_with("s_sendmsg")) return Kind::message;
  if (name.starts_with("ds_")) return name == "ds_nop" ? Kind::none : Kind::lds;
  if (!begins_with_any(name, {"global_", "buffer_", "scratch_", "flat_", "tbuffer_", "image_"}))
    return Kind::none;
  if (has(name, "_inv") || has(name, "_wb")) return Kind::none;
  const bool stores = !returns_data(at) && !loads_to_lds(at);
  if (stores && !stores_count_with_loads) return Kind::stores;
  return name.starts_with("flat_") ? Kind::flat : Kind::memory;
}

void start(const AmdAccess& access, Outstanding& counter) {
  count_one(counter);
  for (const RegisterRange& range : access.writes) {
    for (int r = range.first; r < range.first + range.count; ++r)
      counter[static_cast<std::size_t>(r)] = kMost;
  }
}

class Waits {
 public:
  explicit Waits(const AmdProgram& program)
      : program_(program), stores_with_loads_(program.is("gfx9")) {}

  void step(Waiting& w, std::size_t i) const {
    const AmdInstruction& at = program_.code[i];
    const AmdAccess& access = program_.access[i];
    if (wait(at, w)) return;
    const Kind kind = kind_of(at, stores_with_loads_);
    if (kind == Kind::memory || kind == Kind::flat) start(access, w.memory);
    if (kind == Kind::lds || kind == Kind::flat) start(access, w.lds);
    if (kind == Kind::scalar) start(access, w.scalar);
    if (kind == Kind::lds && access.writes.empty()) w.lds[kLdsStores] = kMost;
    w.flat_memory = w.flat_memory || kind == Kind::flat;
    w.flat_lds = w.flat_lds || kind == Kind::flat;
    w.scalars = w.scalars || kind == Kind::scalar || kind == Kind::message;
  }

  // What is wrong with an instruction; nothing for most.
  std::string_view wrong(Waiting& w, std::size_t i) const {
    const AmdInstruction& at = program_.code[i];
    const Kind kind = kind_of(at, stores_with_loads_);
    if (at.name == "s_barrier" || at.name.starts_with("s_barrier_signal")) {
      const bool early = w.lds[kLdsStores] != 0;
      w.lds[kLdsStores] = 0;
      return early ? "is a barrier before which LDS may not have what this wave stored there" : "";
    }
    if (at.name.starts_with("s_wait")) return "";
    std::string_view found;
    for (const RegisterRange& range : program_.access[i].reads) {
      if (pending(range, w, Kind::none)) found = "reads a register whose load was not waited for";
    }
    for (const RegisterRange& range : program_.access[i].writes) {
      // A later load of the same counter comes after.
      if (found.empty() && pending(range, w, kind))
        found = "writes a register whose load was not waited for";
    }
    return found;
  }

  static bool meet(Waiting& w, const Waiting& more) {
    bool changed = false;
    const auto keep = [&](auto& value, auto other) {
      if (value >= other) return;
      value = other;
      changed = true;
    };
    for (std::size_t r = 0; r < w.memory.size(); ++r) {
      keep(w.memory[r], more.memory[r]);
      keep(w.lds[r], more.lds[r]);
      keep(w.scalar[r], more.scalar[r]);
    }
    keep(w.flat_memory, more.flat_memory);
    keep(w.flat_lds, more.flat_lds);
    keep(w.scalars, more.scalars);
    return changed;
  }

 private:
  // Told once: what was found is taken as there.
  static bool pending(const RegisterRange& range, Waiting& w, Kind kind) {
    return range.any([&](std::size_t r) {
      const bool memory = w.memory[r] != 0 && (kind != Kind::memory || w.flat_memory);
      const bool lds = w.lds[r] != 0 && (kind != Kind::lds || w.flat_lds);
      const bool found = memory || lds || w.scalar[r] != 0;
      if (found) w.memory[r] = w.lds[r] = w.scalar[r] = 0;
      return found;
    });
  }

  const AmdProgram& program_;
  bool stores_with_loads_;
};

}  // namespace

void wait_findings(const AmdProgram& program, AmdFindings& findings) {
  const Waits waits(program);
  const auto step = [&](Waiting& w, std::size_t i) { waits.step(w, i); };
  const auto before = states_before_blocks(
      program.flow, Waiting{}, step, [](Waiting&, const AmdEdge&) {}, Waits::meet);
  visit_instructions(program.flow, before, [&](Waiting& w, std::size_t i) {
    if (const std::string_view wrong = waits.wrong(w, i); !wrong.empty()) findings.add(i, wrong);
    step(w, i);
  });
}

}  // namespace fulmen::gpu
