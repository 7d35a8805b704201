#include "gpu/launch/mask_bits.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string_view>

#include "algorithm/mask_spans.h"
#include "algorithm/mask_tiles.h"

namespace fulmen::gpu {
namespace {

constexpr int64_t kMostTile = 256;  // columns
constexpr int kLanesOfBits = 128;   // of workgroups that make bits and tables

// A row's words: tiles that begin at multiples of their columns end behind the last one.
int64_t words_of(int64_t columns) { return round_up(tiles_of(columns + kMostTile - 1, 32), 4); }

// Returns true for forward/pack_few_rows.h, whose lanes go over the queries. Bits of bytes alone
// are made by one kernel: a small problem checks its first use.
bool has_few_rows(const Problem& p) {
  constexpr int64_t kFewRows = 16;
  return has_mask_parts(p) && p.seqlen_q <= kFewRows;
}

int64_t planes(const Problem& p, const kernels::MaskBits& bits) {
  return (bits.batch_planes != 0 ? p.batch : 1) * (bits.head_planes != 0 ? p.num_heads : 1);
}

// Everything but pointers.
kernels::MaskBits bits_of(const Problem& p) {
  const bool one_row = !masks_differ_by_query(p);
  const bool heads = masks_differ_by_head(p), batches = masks_differ_by_batch(p);
  kernels::MaskBits bits{};
  bits.words = static_cast<int>(words_of(p.seqlen_k));
  bits.batch_planes = batches ? static_cast<int>(heads ? p.num_heads : 1) : 0;
  bits.head_planes = heads ? 1 : 0;
  bits.rows = one_row ? 1 : p.seqlen_q;
  bits.blocks = one_row && !has_band(p) ? 1 : tiles_of(p.seqlen_q, kernels::kMaskRows);
  bits.keys = p.seqlen_k;
  bits.query_words = static_cast<int>(words_of(bits.rows));
  return bits;
}

// The table of a block mask's blocks, before the bits that are made of it.
void add_block_states(const Problem& p, const Specialisation& bits, bool empty, LaunchPlan& plan) {
  if (!p.has_block_mask()) return;
  kernels::BlockMask& mask = plan.arguments.block_mask;
  const bool heads = lists_differ_by_head(p), batches = lists_differ_by_batch(p);
  mask.query_blocks = static_cast<int>(p.query_blocks());
  mask.key_blocks = static_cast<int>(p.key_blocks());
  mask.block_q = static_cast<int>(p.mask_block_q);
  mask.block_k = static_cast<int>(p.mask_block_k);
  mask.head_planes = heads ? 1 : 0;
  mask.batch_planes = batches ? (heads ? p.num_heads : 1) : 0;
  const int64_t rows = (batches ? p.batch : 1) * (heads ? p.num_heads : 1) * p.query_blocks();
  plan.block_states_words = round_up(tiles_of(rows * p.key_blocks(), 4), 16);
  Specialisation s;
  s.entry = "forward/block_states.h";
  s.workgroup = bits.workgroup;
  s.dtype = bits.dtype;
  s.kv_dtype = bits.kv_dtype;
  s.whole_rows = bits.whole_rows;
  plan.launches.insert(plan.launches.begin(), {s, empty ? 0 : rows});
}

// Kernels whose loops over tiles begin and end where the mask does (kernels/tile/mask_span.h). The
// prefill of NVIDIA's passes over tiles by itself.
bool reads_spans(const Specialisation& s) {
  constexpr std::array<std::string_view, 9> kReaders{
      "forward/prefill.h",          "forward/prefill_fp32.h",    "forward/prefill_portable.h",
      "backward/backward.h",        "backward/backward_wgmma.h", "backward/backward_wgmma_atomic.h",
      "backward/backward_atomic.h", "backward/backward_fp32.h",  "backward/backward_portable.h"};
  if (s.entry.starts_with("forward/prefill") && s.target != nullptr &&
      s.target->vendor != Vendor::amd)
    return false;
  return std::find(kReaders.begin(), kReaders.end(), s.entry) != kReaders.end();
}

// Kernels that wait by themselves for the launch before theirs, so that they may be launched early.
bool waits_for_bits(const Specialisation& s) {
  constexpr std::array<std::string_view, 4> kWaiters{"forward/decode.h", "forward/decode_tma.h",
                                                     "forward/prefill.h", "forward/prefill_tma.h"};
  return std::find(kWaiters.begin(), kWaiters.end(), s.entry) != kWaiters.end();
}

// The tables behind the bits: launches read spans or lists.
int64_t tables_words(const LaunchPlan& plan) {
  const kernels::MaskBits& bits = plan.arguments.mask_bits;
  if (plan.mask_blocks_words == 0) return 0;
  if (plan.mask_list_words > 0) return plan.mask_list_words;
  return algorithm::MaskSpans::words(bits, plan.mask_blocks_words / (bits.blocks * bits.words));
}

// A launch that makes a table of the bits.
Specialisation table_kernel(const Specialisation& reader, std::string_view entry, int lds_bytes) {
  Specialisation s = helper_kernel(reader, entry, kLanesOfBits);
  s.keep_mask = kMaskAsBits;
  s.backward = false;
  s.lds_bytes = lds_bytes;
  s.splits = s.sinks = 0;
  return s;
}

// Lists: one for each batch and KV head whose masks differ, and each block of keys.
int64_t list_planes(const Problem& p, const kernels::MaskBits& bits) {
  return (bits.batch_planes != 0 ? p.batch : 1) * (bits.head_planes != 0 ? p.num_kv_heads : 1);
}
KernelLaunch lists_launch(const Problem& p, const Specialisation& reader, bool empty,
                          LaunchPlan& plan) {
  const int64_t planes = list_planes(p, plan.arguments.mask_bits);
  plan.mask_list_words = mask_list_words(p);
  return {table_kernel(reader, "backward/mask_tiles.h", 16 * (kLanesOfBits / 32)),
          empty ? 0 : planes * algorithm::MaskTiles::of(p.seqlen_q, p.seqlen_k).blocks};
}

bool rows_are_keys(const Specialisation& s) { return (s.outputs & (kGivesDk | kGivesDv)) != 0; }

}  // namespace

void read_mask_as_bits(const Problem& p, Specialisation& s) {
  if (s.keep_mask == 0) return;
  if (has_mask_parts(p)) {  // what functions make is there as bits alone
    s.plain_scale = scales_alone(p);
    return;
  }
  // A mask of one row for all queries has few bytes, and a band makes blocks of it that differ:
  // with one a head they would take far more memory. What kernels AMD's chips run may not depend on
  // a problem's size here: a small problem checks their first use.
  constexpr int64_t kMostWords = int64_t{64} << 20;
  const kernels::MaskBits bits = bits_of(p);
  const bool large = s.target->vendor == Vendor::amd
                         ? has_band(p) && bits.head_planes != 0
                         : 2 * planes(p, bits) * bits.blocks * bits.words > kMostWords;
  if (!masks_differ_by_query(p) && large) return;
  // Register pressure on AMD: beside a bias and ALiBi no registers are left for the addresses of
  // the bits.
  const bool under_pressure = s.target->vendor == Vendor::amd && s.bias >= 0 && s.alibi != 0;
  if (under_pressure && p.pass == Pass::forward) return;
  s.keep_mask = kMaskAsBits;
  s.plain_scale = scales_alone(p);
}

Support takes_mask_bits(const Specialisation& s) {
  if (s.keep_mask != kMaskAsBytes) return {};
  return Support::no(
      "a keep_mask of one row for so many queries and keys, beside a band, is read as bytes");
}

bool goes_over_lists(const Specialisation& s) {
  return s.entry.starts_with("backward/backward_tma") && s.keep_mask == kMaskAsBits &&
         s.variable == 0;
}

void add_mask_bits(const Problem& p, LaunchPlan& plan) {
  const auto reads_bits = [](const KernelLaunch& launch) {
    return launch.specialisation.keep_mask == kMaskAsBits;
  };
  const auto reader = std::find_if(plan.launches.begin(), plan.launches.end(), reads_bits);
  if (reader == plan.launches.end()) return;
  kernels::MaskBits& bits = plan.arguments.mask_bits;
  bits = bits_of(p);
  reader->programmatic_launch =
      reader->programmatic_launch || waits_for_bits(reader->specialisation);
  const auto some_reader = [&](bool (*is_one)(const Specialisation&)) {
    return std::any_of(plan.launches.begin(), plan.launches.end(), [&](const KernelLaunch& launch) {
      return reads_bits(launch) && is_one(launch.specialisation);
    });
  };
  const bool by_key = some_reader(rows_are_keys);
  const int64_t all = planes(p, bits);
  plan.mask_rows_words = all * bits.rows * bits.words;
  plan.mask_blocks_words = all * bits.blocks * bits.words;
  plan.mask_keys_words = by_key ? all * bits.keys * bits.query_words : 0;

  constexpr int kLanes = kLanesOfBits, kRowBytes = 16;  // kernels/forward/pack_mask.h
  const bool few = has_few_rows(p);
  Specialisation s = helper_kernel(reader->specialisation,
                                   few ? "forward/pack_few_rows.h" : "forward/pack_mask.h", kLanes);
  s.keep_mask = kMaskAsBits;
  s.mask_parts = mask_parts(p);
  s.functions = mask_mod_source(p);
  s.band = reader->specialisation.band;
  s.backward = false;
  s.lds_bytes = few ? 0 : kRowBytes * (kernels::kMaskRows + 2 * kLanes / 32);
  s.splits = s.sinks = 0;
  const int64_t blocks =
      few ? 1 : std::max<int64_t>(bits.blocks, by_key ? bits.query_words / 2 : 0);
  // The bits are not read where there are no queries, no keys or no batch: then there may be no
  // mask either.
  const bool empty = reader->workgroups == 0 || p.seqlen_k == 0;
  const bool spans = some_reader(reads_spans), lists = some_reader(goes_over_lists);
  assert(!(spans && lists));  // their tables lie in the same place
  const Specialisation products = reader->specialisation;
  if (lists) plan.launches.insert(plan.launches.begin(), lists_launch(p, products, empty, plan));
  if (spans) {
    const int64_t count = all * algorithm::MaskSpans::of(bits, 0).count();
    plan.launches.insert(
        plan.launches.begin(),
        {table_kernel(products, "forward/mask_spans.h", 8 * (kLanes / 32)), empty ? 0 : count});
  }
  // Those with pairs to look at, and for a block mask those that fill what is all the same.
  const int64_t key_blocks = bits.words / 4;
  const int64_t fillers =
      p.has_block_mask() && !few ? tiles_of(key_blocks, algorithm::kFilledBlocks) : 0;
  plan.launches.insert(plan.launches.begin(),
                       {s, empty ? 0 : all * blocks * (key_blocks + fillers)});
  add_block_states(p, s, empty, plan);
}

int64_t mask_list_words(const Problem& p) {
  return algorithm::MaskTiles::of(p.seqlen_q, p.seqlen_k).words(list_planes(p, bits_of(p)));
}

int64_t mask_words(const LaunchPlan& plan) {
  return plan.mask_rows_words + 2 * plan.mask_blocks_words + tables_words(plan) +
         plan.mask_keys_words + plan.block_states_words;
}

float* set_mask_bits(const LaunchPlan& plan, float* at, kernels::ForwardArguments& arguments) {
  if (mask_words(plan) == 0) return at;
  kernels::MaskBits& bits = arguments.mask_bits;
  bits.by_query = reinterpret_cast<unsigned*>(at);
  bits.any = bits.by_query + plan.mask_rows_words;
  bits.all = bits.any + plan.mask_blocks_words;
  bits.by_key =
      plan.mask_keys_words > 0 ? bits.all + plan.mask_blocks_words + tables_words(plan) : nullptr;
  bits.lists = plan.mask_list_words > 0 ? bits.all + plan.mask_blocks_words : nullptr;
  float* const end = at + mask_words(plan);
  arguments.block_mask.states = reinterpret_cast<unsigned char*>(end - plan.block_states_words);
  return end;
}

}  // namespace fulmen::gpu
