#include "cpu/mask_tiles.h"

#include <algorithm>
#include <new>

#include "algorithm/key_range.h"
#include "runtime/block_lists.h"
#include "score/interval.h"

namespace fulmen::cpu {
namespace {

// Bytes of a mask that one thread reads sooner than others wake up.
constexpr int64_t kSmallMask = 64 << 10;

// mask: [rows][keys], rows `stride` bytes apart, at most kBlockM by kMaskKeys.
Kept kept_of_tile(const uint8_t* mask, int64_t stride, int64_t rows, int64_t keys) {
  MaskBytes seen;
  for (int64_t row = 0; row < rows; ++row) {
    seen.add(mask + row * stride, keys);
    if (seen.kept() == Kept::some) return Kept::some;
  }
  return seen.kept();
}

Kept both(Kept a, Kept b) {
  if (a == Kept::none || b == Kept::none) return Kept::none;
  return a == Kept::all ? b : a;
}

bool depends_on(const score::Graph& graph, score::Op op) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [op](const score::Node& node) { return node.op == op; });
}

// A tile of queries and keys of a sequence and head, ends included.
Kept kept_by_function(score::Intervals& intervals, const score::Block& block) {
  switch (intervals.of(block)) {
    case score::Verdict::none:
      return Kept::none;
    case score::Verdict::all:
      return Kept::all;
    case score::Verdict::some:
      break;
  }
  return Kept::some;
}

// A thread's bounds of mask_mod in the workspace, made when its first task asks: what they found of
// a tensor serves all of the thread's tasks. The bounds of nodes follow.
struct ThreadIntervals {
  score::Intervals* made = nullptr;
  alignas(score::Intervals) char memory[sizeof(score::Intervals)];

  score::Intervals& of(const score::Graph& graph, const score::Elements* tensors) {
    if (made == nullptr) {
      made =
          new (memory) score::Intervals(graph, tensors, reinterpret_cast<score::Bounds*>(this + 1));
    }
    return *made;
  }
};
static_assert(alignof(ThreadIntervals) >= alignof(score::Bounds));

// What the states of a tile's blocks leave, where mask_mod keeps `masked` of the tile.
Kept kept_by_blocks(const BlockStates& blocks, const score::Block& tile, Kept masked) {
  bool any[3] = {};
  for (int64_t q = tile.query_first / blocks.block_q; q <= tile.query_last / blocks.block_q; ++q) {
    for (int64_t k = tile.key_first / blocks.block_k; k <= tile.key_last / blocks.block_k; ++k) {
      any[static_cast<int>(
          blocks.of(tile.batch, tile.head, q * blocks.block_q, k * blocks.block_k))] = true;
    }
  }
  const bool partial = any[static_cast<int>(BlockState::partial)],
             full = any[static_cast<int>(BlockState::full)];
  const bool some = full || (partial && masked != Kept::none);
  const bool all = !any[static_cast<int>(BlockState::none)] && (!partial || masked == Kept::all);
  return !some ? Kept::none : all ? Kept::all : Kept::some;
}

}  // namespace

MaskTiles::MaskTiles(const Problem& p, int threads) : problem_(&p), threads_(threads) {
  const ScoreFunctions::Impl* functions = p.functions.impl();
  has_function_ = functions != nullptr && functions->has_mask();
  const bool blocks = p.has_block_mask();
  if (!p.keep_mask.present && !has_function_ && !blocks) return;
  const auto listed = [&](std::size_t dim) {
    return blocks &&
           (p.kv_num_blocks.strides[dim] != 0 || p.kv_indices.strides[dim] != 0 ||
            p.full_kv_num_blocks.strides[dim] != 0 || p.full_kv_indices.strides[dim] != 0);
  };
  const auto varies = [&](std::size_t dim, score::Op op) {
    return (p.keep_mask.present && p.keep_mask.strides[dim] != 0) || listed(dim) ||
           (has_function_ && depends_on(functions->mask, op));
  };
  const auto stored = [](bool all, int64_t size) {
    return all ? size : std::min<int64_t>(size, 1);
  };
  const bool by_batch = varies(0, score::Op::batch), by_head = varies(1, score::Op::head),
             by_row = has_function_ || blocks || p.keep_mask.strides[2] != 0;
  batch_.size = stored(by_batch, p.batch);
  heads_.size = stored(by_head, p.num_heads);
  rows_.size = stored(by_row, p.seqlen_q);
  row_tiles_ = (rows_.size + kBlockM - 1) / kBlockM;
  key_tiles_ = (p.seqlen_k + kMaskKeys - 1) / kMaskKeys;
  batch_.stride = by_batch ? heads_.size * row_tiles_ * key_tiles_ : 0;
  heads_.stride = by_head ? row_tiles_ * key_tiles_ : 0;
  rows_.stride = by_row ? key_tiles_ : 0;
  tiles_ = batch_.size * heads_.size * row_tiles_ * key_tiles_;
  if (blocks) {
    const int64_t states = p.query_blocks() * p.key_blocks();
    block_heads_ = {stored(listed(1), p.num_heads), listed(1) ? states : 0};
    block_batch_ = {stored(listed(0), p.batch), listed(0) ? block_heads_.size * states : 0};
    states_ = block_batch_.size * block_heads_.size * states;
  }
  if (has_function_) {
    interval_bytes_ =
        round_up(static_cast<int64_t>(sizeof(ThreadIntervals) +
                                      functions->mask.nodes.size() * sizeof(score::Bounds)),
                 64);
  }
}

BlockStates MaskTiles::block_states(const BlockState* states) const {
  if (states_ == 0) return {};
  return {states,
          block_batch_.stride,
          block_heads_.stride,
          problem_->key_blocks(),
          problem_->query_blocks(),
          problem_->mask_block_q,
          problem_->mask_block_k};
}

void MaskTiles::read_blocks(const AttentionTensors& tensors, BlockState* states) const {
  const Problem& p = *problem_;
  std::fill_n(states, states_, BlockState::none);
  const int64_t rows = p.query_blocks(), keys = p.key_blocks();
  const auto read = [&](const BlockList& list, BlockState state) {
    for (int64_t index = 0; index < block_batch_.size * block_heads_.size * rows; ++index) {
      const int64_t row = index % rows, h = index / rows % block_heads_.size,
                    b = index / rows / block_heads_.size;
      const BlockRow listed = block_row(list, b, h, row, static_cast<int>(keys));
      for (int at = 0; at < listed.count; ++at) {
        if (const int block = listed.listed(at); block >= 0) states[index * keys + block] = state;
      }
    }
  };
  read(partial_blocks(p, tensors), BlockState::partial);
  read(full_blocks(p, tensors), BlockState::full);
}

bool MaskTiles::is_outside(int64_t row, int64_t rows, int64_t key, int64_t keys) const {
  const Problem& p = *problem_;
  if (p.variable_lengths() || rows_.stride == 0) return false;
  const algorithm::Band band{p.seqlen_k, p.diagonal, p.window_left, p.window_right};
  const auto any = band.any(row, row + rows);
  return any.end <= key || any.begin >= key + keys;
}

MaskSummary MaskTiles::summarise(const AttentionTensors& tensors, const ThreadSettings& threads,
                                 const TileFunction& function, void* memory) const {
  if (tiles_ == 0) return {};
  const Problem& p = *problem_;
  const TensorSpec& spec = p.keep_mask;
  auto* tiles = static_cast<Kept*>(memory);
  auto* states = reinterpret_cast<BlockState*>(static_cast<char*>(memory) + round_up(tiles_, 64));
  char* intervals = reinterpret_cast<char*>(states) + round_up(states_, 64);
  const auto intervals_of = [&](int worker) -> ThreadIntervals& {
    return *reinterpret_cast<ThreadIntervals*>(intervals + worker * interval_bytes_);
  };
  for (int worker = 0; has_function_ && worker < threads_; ++worker)
    new (&intervals_of(worker)) ThreadIntervals;
  if (states_ > 0) read_blocks(tensors, states);
  MaskSummary summary{tiles,
                      batch_.stride,
                      heads_.stride,
                      rows_.stride,
                      has_function_ || states_ > 0,
                      block_states(states)};
  const auto* mask = static_cast<const uint8_t*>(tensors.keep_mask.data);
  // The tiles of some query rows.
  const auto summarise_rows = [&](int64_t index, int worker) {
    const int64_t row = index % row_tiles_ * kBlockM, head = index / row_tiles_ % heads_.size,
                  batch = index / row_tiles_ / heads_.size;
    const int64_t rows = std::min<int64_t>(rows_.size - row, kBlockM);
    Kept* to = tiles + index * key_tiles_;
    for (int64_t tile = 0; tile < key_tiles_; ++tile) {
      to[tile] = is_outside(row, rows, tile * kMaskKeys, kMaskKeys) ? Kept::none : Kept::all;
    }
    if (spec.present) {
      const uint8_t* from =
          mask + batch * spec.strides[0] + head * spec.strides[1] + row * spec.strides[2];
      for (int64_t tile = 0; tile < key_tiles_; ++tile) {
        if (to[tile] == Kept::none) continue;
        const int64_t keys = std::min<int64_t>(p.seqlen_k - tile * kMaskKeys, kMaskKeys);
        to[tile] = kept_of_tile(from + tile * kMaskKeys, spec.strides[2], rows, keys);
      }
    }
    if (!summary.functions) return;
    score::Block block{.batch = static_cast<int32_t>(batch),
                       .head = static_cast<int32_t>(head),
                       .query_first = static_cast<int32_t>(row),
                       .query_last = static_cast<int32_t>(row + rows - 1)};
    const auto each_tile = [&](const auto& kept) {
      for (int64_t tile = 0; tile < key_tiles_; ++tile) {
        if (to[tile] == Kept::none) continue;
        block.key_first = static_cast<int32_t>(tile * kMaskKeys);
        block.key_last =
            static_cast<int32_t>(std::min<int64_t>(p.seqlen_k, (tile + 1) * kMaskKeys) - 1);
        const Kept masked = kept();
        to[tile] =
            both(to[tile], states_ > 0 ? kept_by_blocks(summary.blocks, block, masked) : masked);
      }
    };
    if (!has_function_) return each_tile([] { return Kept::all; });
    score::Intervals& bounds = intervals_of(worker).of(p.functions.impl()->mask, function.tensors);
    each_tile([&] { return kept_by_function(bounds, block); });
  };
  const int64_t count = batch_.size * heads_.size * row_tiles_;
  if (!summary.functions && batch_.size * heads_.size * rows_.size * p.seqlen_k <= kSmallMask) {
    for (int64_t index = 0; index < count; ++index) summarise_rows(index, 0);
  } else {
    parallel_tasks(threads, count, summarise_rows);
  }
  return summary;
}

}  // namespace fulmen::cpu
