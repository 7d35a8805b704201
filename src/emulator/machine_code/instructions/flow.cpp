// Branches, barriers, and waits for what is outstanding.
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

void nothing(Wave& /*wave*/, const Instruction& /*instruction*/) {}

template <class Condition>
void add_branch(Table& t, std::string_view name, Condition /*condition*/) {
  t.add(name, Kind::branch, [](Wave& w, const Instruction& i) {
    if (Condition{}(w)) w.at = i.target;
  });
}

uint64_t vcc(const Wave& w) {
  return (w.scalars[kVccLow] | uint64_t{w.scalars[kVccLow + 1]} << 32U) & w.all_lanes;
}

void add_branches(Table& t) {
  add_branch(t, "s_branch", [](const Wave& /*w*/) { return true; });
  add_branch(t, "s_cbranch_scc0", [](const Wave& w) { return !w.scc; });
  add_branch(t, "s_cbranch_scc1", [](const Wave& w) { return w.scc; });
  add_branch(t, "s_cbranch_vccz", [](const Wave& w) { return vcc(w) == 0; });
  add_branch(t, "s_cbranch_vccnz", [](const Wave& w) { return vcc(w) != 0; });
  add_branch(t, "s_cbranch_execz", [](const Wave& w) { return w.exec() == 0; });
  add_branch(t, "s_cbranch_execnz", [](const Wave& w) { return w.exec() != 0; });
  t.add("s_endpgm", Kind::branch, [](Wave& w, const Instruction& /*i*/) {
    w.memory_loads.wait(0, w.pending, w.loads, w.group->arriving);
    w.ended = true;
  });
}

void wait_memory(Wave& w, uint64_t left) {
  w.memory_loads.wait(left, w.pending, w.loads, w.group->arriving);
}
void wait_scalar(Wave& w, uint64_t left) {
  if (left == 0)
    w.scalar_loads.wait(0, w.pending, w.loads,
                        w.group->arriving);  // scalar loads arrive in any order
}
void wait_lds(Wave& w, uint64_t left) {
  w.lds_loads.wait(left, w.pending, w.loads, w.group->arriving);
}
// The counter that LDS and scalar loads share before gfx12.
void wait_lds_and_scalar(Wave& w, uint64_t left) {
  if (left == 0 || w.scalar_loads.empty()) wait_lds(w, left);
  wait_scalar(w, left);
}

// The decoder puts counts into the offsets: memory's, then LDS's with scalar loads. -1: no wait.
void wait_counters(Wave& w, const Instruction& i) {
  if (i.offset >= 0) wait_memory(w, static_cast<uint64_t>(i.offset));
  if (i.offset1 >= 0) wait_lds_and_scalar(w, static_cast<uint64_t>(i.offset1));
}

void add_waits(Table& t) {
  t.add("s_waitcnt", Kind::wait, wait_counters);
  t.add("s_waitcnt_vmcnt", Kind::wait,
        [](Wave& w, const Instruction& i) { wait_memory(w, i.operand[1].value); });
  t.add("s_waitcnt_lgkmcnt", Kind::wait,
        [](Wave& w, const Instruction& i) { wait_lds_and_scalar(w, i.operand[1].value); });
  t.add("s_wait_loadcnt", Kind::wait,
        [](Wave& w, const Instruction& i) { wait_memory(w, i.operand[0].value); });
  t.add("s_wait_dscnt", Kind::wait,
        [](Wave& w, const Instruction& i) { wait_lds(w, i.operand[0].value); });
  t.add("s_wait_kmcnt", Kind::wait,
        [](Wave& w, const Instruction& i) { wait_scalar(w, i.operand[0].value); });
  t.add("s_wait_loadcnt_dscnt", Kind::wait, [](Wave& w, const Instruction& i) {
    wait_memory(w, i.operand[0].value >> 8U);
    wait_lds(w, i.operand[0].value & 0xFFU);
  });
  t.add("s_wait_storecnt_dscnt", Kind::wait,
        [](Wave& w, const Instruction& i) { wait_lds(w, i.operand[0].value & 0xFFU); });
  // Stores complete at once, and nothing else that these instructions wait for exists here.
  for (const char* name :
       {"s_waitcnt_vscnt", "s_waitcnt_expcnt", "s_waitcnt_depctr", "s_wait_storecnt", "s_wait_alu",
        "s_wait_expcnt", "s_wait_samplecnt", "s_wait_bvhcnt"}) {
    t.add(name, Kind::wait, nothing);
  }
  t.add("s_wait_idle", Kind::wait, [](Wave& w, const Instruction& /*i*/) {
    wait_memory(w, 0);
    wait_lds(w, 0);
    wait_scalar(w, 0);
  });
}

void signal(Wave& w, const Instruction& /*i*/) {
  if (w.lds_loads.has_stores() && !w.program->hand_written)
    fail("is a barrier before which LDS may not have what this wave stored there");
  ++w.signals;
}
void wait_for_all(Wave& w, const Instruction& /*i*/) {
  if (w.signals == w.waits) fail("waits for a barrier that this wave did not come to");
  w.at_barrier = true;  // workgroup.cpp ends the wait
}

}  // namespace

void add_flow_instructions(Table& t) {
  add_branches(t);
  add_waits(t);
  t.add("s_barrier", Kind::barrier, [](Wave& w, const Instruction& i) {
    signal(w, i);
    wait_for_all(w, i);
  });
  t.add("s_trap", Kind::none, [](Wave& /*wave*/, const Instruction& /*i*/) {
    fail("is a trap, which the kernel came to");
  });
  t.add("s_barrier_signal", Kind::barrier, signal);
  t.add("s_barrier_wait", Kind::barrier, wait_for_all);
  for (const char* name : {"s_nop",
                           "s_delay_alu",
                           "s_clause",
                           "s_sleep",
                           "s_setprio",
                           "s_sendmsg",
                           "s_set_inst_prefetch_distance",
                           "s_icache_inv",
                           "s_dcache_inv",
                           "s_inst_prefetch",
                           "s_code_end",
                           "buffer_gl0_inv",
                           "buffer_gl1_inv",
                           "buffer_inv",
                           "buffer_wbl2",
                           "global_inv",
                           "global_wb",
                           "global_wbinv",
                           "s_prefetch_inst",
                           "s_prefetch_data"}) {
    t.add(name, Kind::none, nothing);
  }
}

}  // namespace fulmen::gpu::isa
