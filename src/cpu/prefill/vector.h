// Forward attention for a few query tiles of one head: the body of the prefill and short-sequence
// kernels.
#pragma once

#include "cpu/tile/additive_tile.h"
#include "cpu/tile/call.h"
#include "cpu/tile/dropout_tile.h"
#include "cpu/tile/finish_rows.h"
#include "cpu/tile/function_tile.h"
#include "cpu/tile/output_product.h"
#include "cpu/tile/pack.h"
#include "cpu/tile/row_prefetch.h"
#include "cpu/tile/row_scores.h"
#include "cpu/tile/score_product.h"
#include "cpu/tile/softmax.h"
#include "cpu/tile/storage.h"
#include "cpu/tile/tile.h"
#include "cpu/tile/unpack.h"

namespace fulmen::cpu {

// A task's tiles, as far as they do not depend on the dtype of Q, K, V and O: compiled once for an
// instruction set. Their state lives in the worker's scratch. Product: the vocabulary of q k^T,
// another one where it is of codes of int8.
template <class Isa, class Product = Isa>
class PrefillTiles {
 protected:
  __attribute__((noinline)) PrefillTiles(const ForwardCall& call, const PrefillRows& task,
                                         float* scratch, const TileScratch& layout,
                                         int64_t element_bytes)
      : call_(call),
        problem_(*call.problem),
        tensors_(*call.tensors),
        task_(task),
        element_bytes_(element_bytes),
        kv_head_(task.head / problem_.group_size()),
        layout_(layout),
        scratch_(scratch),
        tiles_(static_cast<int>((task.row_end - task.row_begin + kBlockM - 1) / kBlockM)),
        alibi_slope_(alibi_slope_of(problem_, tensors_, task.batch, task.head)) {}

  static constexpr float kMinusInfinity = -__builtin_inff();

  int64_t tile_row(int tile) const {
    return task_.row_begin + static_cast<int64_t>(tile) * kBlockM;
  }
  int tile_rows(int tile) const {
    const int64_t left = task_.row_end - tile_row(tile);
    return left < kBlockM ? static_cast<int>(left) : kBlockM;
  }
  SoftmaxState& state(int tile) {
    return reinterpret_cast<SoftmaxState*>(scratch_ + layout_.state)[tile];
  }
  float* tile_max() {
    return scratch_ + layout_.state +
           static_cast<int64_t>(sizeof(SoftmaxState) / sizeof(float)) * call_.tiles_per_task;
  }
  float* queries(int tile) { return scratch_ + layout_.queries + tile * layout_.query_tile; }
  float* output(int tile) { return scratch_ + layout_.output + tile * layout_.output_tile; }

  __attribute__((noinline)) void clear_state(int tile) {
    for (int row = 0; row < kBlockM; row += Isa::kLanes) {
      Isa::store(state(tile).max + row, Isa::set1(kMinusInfinity));
      Isa::store(state(tile).sum + row, Isa::zero());
    }
    started_ &= ~(1U << tile);
  }

  // The next tile's keys and values, `most` of them, a row or two in each of `times` steps of this
  // one's products.
  __attribute__((noinline)) void fetch_ahead(int64_t first, int64_t end, int64_t most, int times) {
    ahead_[0] = ahead_[1] = {};
    if (first >= end) return;
    int64_t count = end - first < most ? end - first : most;
    const bool unpacked = problem_.quantized_kv();
    const int64_t k_size = unpacked ? size_of(problem_.k_dtype) : element_bytes_,
                  v_size = unpacked ? size_of(problem_.v_dtype) : element_bytes_;
    const char *k = nullptr, *v = nullptr;
    if (call_.pages.pages != nullptr) {  // no further than the first one's page
      const PageWalk k_walk(call_.pages, problem_.k, first), v_walk(call_.pages, problem_.v, first);
      k = element_address(tensors_.k, problem_.k, k_size, 0, 0, kv_head_) +
          k_size * k_walk.offset();
      v = element_address(tensors_.v, problem_.v, v_size, 0, 0, kv_head_) +
          v_size * v_walk.offset();
      count = k_walk.left_in_page() < count ? k_walk.left_in_page() : count;
    } else {
      k = element_address(tensors_.k, problem_.k, k_size, task_.batch, first, kv_head_);
      v = element_address(tensors_.v, problem_.v, v_size, task_.batch, first, kv_head_);
    }
    const auto row_bytes = [unpacked](DType dtype, int64_t dim, int64_t size) {
      return (unpacked ? row_elements(dtype, dim) : dim) * size;
    };
    if constexpr (kIsOfCodes<Product>) {
      const int64_t bytes = call_.codes.key_stride * static_cast<int64_t>(sizeof(float));
      ahead_[0] = fetch_rows(key_words(first), bytes, bytes, count);
    } else {
      ahead_[0] = fetch_rows(k, problem_.k.strides[1] * k_size,
                             row_bytes(problem_.k_dtype, problem_.head_dim, k_size), count);
    }
    ahead_[1] = fetch_rows(v, problem_.v.strides[1] * v_size,
                           row_bytes(problem_.v_dtype, problem_.head_dim_v, v_size), count);
    ahead_rows_ = static_cast<int>((2 * most + times - 1) / times);
  }

  // What a query tile fetches of the next key tile: the first one all of it, over the products of
  // all; a page each where pages are smaller.
  void fetch_part(int64_t next, int64_t end, int tile) {
    const int steps = call_.block_n / Product::kQkKeys;
    const int64_t page = call_.pages.pages == nullptr ? call_.block_n : call_.pages.page_size;
    if (page >= call_.block_n) {
      if (tile == 0) fetch_ahead(next, end, call_.block_n, tiles_ * steps);
      return;
    }
    fetch_ahead(next + tile * page, next + call_.block_n < end ? next + call_.block_n : end, page,
                steps);
  }

  // What a query tile attends of a key tile.
  struct Piece {
    int tile = 0;
    int64_t row = 0;
    int rows = 0;
    int count = 0;  // keys from the key tile's first on; 0: fully masked
    int64_t first = 0;
    bool partial = false;   // some of them are masked by the band
    bool masked = false;    // or by the bool mask
    bool additive = false;  // the scores need more than a factor
  };
  Piece piece(int tile, int64_t first, int loaded) const {
    return piece(tile, tile_row(tile), tile_rows(tile), first, loaded);
  }
  Piece piece(int tile, int64_t row, int rows, int64_t first, int loaded) const {
    const auto some = call_.band.any(row, row + rows), all = call_.band.all(row, row + rows);
    if (some.begin >= first + loaded || some.end <= first) return {};
    int count = static_cast<int>(some.end - first < loaded ? some.end - first : loaded);
    Kept kept = kept_of_keys(row, first, count);
    if (kept == Kept::some && count > kMaskKeys &&
        kept_of_keys(row, first + kMaskKeys, count - kMaskKeys) == Kept::none) {
      count = kMaskKeys;
      kept = kept_of_keys(row, first, count);
    }
    if (kept == Kept::none) return {};
    const bool partial = all.begin > first || all.end < first + count, masked = kept == Kept::some;
    const bool additive = partial || masked || problem_.bias.present || alibi_slope_ != 0.0F ||
                          problem_.softcap > 0.0F || !(call_.scale.log2_scale > 0.0F) ||
                          call_.score_function.any();
    return {tile, row, rows, count, first, partial, masked, additive};
  }
  Kept kept_of_keys(int64_t row, int64_t first, int64_t count) const {
    return kept_of(problem_, call_.mask, task_.batch, task_.head, row, first, count);
  }

  // The first key tile from `first` on of which some query tile attends something, or `end`.
  __attribute__((noinline)) int64_t next_attended(int64_t first, int64_t end) const {
    if (call_.mask.tiles == nullptr) return first < end ? first : end;
    for (; first < end; first += call_.block_n) {
      const int count = static_cast<int>(end - first < call_.block_n ? end - first : call_.block_n);
      for (int tile = 0; tile < tiles_; ++tile) {
        if (piece(tile, first, count).count > 0) return first;
      }
    }
    return end;
  }

  __attribute__((noinline)) void attend(int tile, int64_t first, int loaded) {
    const Piece p = piece(tile, first, loaded);
    if (p.count == 0) return;
    RowSpans spans({0, p.count});
    if (p.additive) {
      const int begin = first_key(p);
      add(p, begin);
      spans = spans_of(p, begin);
      if (spans.all.count() == 0) return;
    }
    if constexpr (kIsOfCodes<Product>) scale_rows(p);
    if (problem_.softcap > 0.0F) {
      score<ScoreKind::softcap>(p, spans);
    } else if (p.additive) {
      score<ScoreKind::additive>(p, spans);
    } else {
      score<ScoreKind::plain>(p, spans);
    }
    if (call_.score_function.any()) score_by_function(p, spans);
    const bool moved = softmax(p, spans);
    if (start(tile)) {
      multiply_values<OutputKind::first>(p, spans);
    } else if (moved) {
      multiply_values<OutputKind::rescale>(p, spans);
    } else {
      multiply_values<OutputKind::accumulate>(p, spans);
    }
  }

  // No key of the piece before this one is attended; a multiple of kSpanKeys.
  int first_key(const Piece& p) const {
    return first_attended(call_.band.any(p.row, p.row + p.rows), p.first, p.count,
                          [&](int key, int keys) __attribute__((always_inline)) {
                            return kept_of_keys(p.row, p.first + key, keys);
                          });
  }
  // The spans of a piece whose additive tile has been made from the key `begin` on.
  RowSpans spans_of(const Piece& p, int begin) {
    if (!p.partial && !p.masked) return RowSpans({begin, p.count});
    return attended_spans<Isa>(p.partial ? &call_.band : nullptr,
                               p.masked ? scratch_ + layout_.additive : nullptr, p.row, p.rows,
                               p.first, {begin, p.count});
  }

  void score_by_function(const Piece& p, const RowSpans& spans) {
    fill_outside<Isa, Product::kQkVecs * Isa::kLanes>(spans, kMinusInfinity,
                                                      scratch_ + layout_.scores);
    score_tile_by<Isa>(call_.score_function, {task_.batch, task_.head, p.row, p.first}, p.rows,
                       spans.all, scratch_ + layout_.scores, tile_max(),
                       scratch_ + layout_.functions);
  }

  template <ScoreKind kKind>
  void score(const Piece& p, const RowSpans& spans) {
    const QueryLaneScores<Product, kKind> epilogue{call_.scale,
                                                   scratch_ + layout_.additive,
                                                   scratch_ + layout_.scores,
                                                   tile_max(),
                                                   ahead_,
                                                   ahead_rows_,
                                                   {query_codes_.scale, query_codes_.start}};
    score_tile<Product>(queries(p.tile), p.rows, key_words(p.first),
                        kIsOfCodes<Product> ? call_.codes.key_stride : layout_.key_stride,
                        words_of<Product>(problem_.head_dim), spans, epilogue);
  }
  // Words of the key tile at hand, or the codes of any.
  const float* key_words(int64_t first) const {
    if constexpr (kIsOfCodes<Product>) return call_.codes.words_of(task_.batch, kv_head_, first);
    return scratch_ + layout_.keys;
  }

  // What makes numbers of a tile's sums of codes, from what its queries have and the keys' scale.
  __attribute__((noinline)) void scale_rows(const Piece& p) {
    const auto of_keys = Isa::broadcast(call_.codes.scale_of(task_.batch, kv_head_, p.first));
    const int64_t tile = static_cast<int64_t>(p.tile) * kBlockM;
    for (int row = 0; row < kBlockM; row += Isa::kLanes) {
      const int64_t at = tile + row;
      const auto offset = Isa::mul(Isa::load(query_codes_.offsets + at), of_keys);
      Isa::store(query_codes_.scale + row, Isa::mul(Isa::load(query_codes_.scales + at), of_keys));
      Isa::store(query_codes_.start + row, Isa::sub(Isa::load(query_codes_.starts + at), offset));
    }
  }

  bool softmax(const Piece& p, const RowSpans& spans) {
    if (problem_.dropout == 0) return softmax(p, spans, NoDropout{});
    return softmax(p, spans, DropoutFactors{dropout_factors(p)});
  }
  const float* dropout_factors(const Piece& p) {
    float* factors = scratch_ + layout_.dropout;
    head_dropout_tile<Isa>(problem_, tensors_, task_.batch, task_.head, p.row, p.rows, p.first,
                           p.count, factors);
    return factors;
  }
  bool natural() const { return call_.scale.units == algorithm::ScoreUnits::natural; }
  float factor(const Piece& p) const {
    return p.additive ? algorithm::kLog2E : call_.scale.log2_scale;
  }
  template <class Dropout>
  bool softmax(const Piece& p, const RowSpans& spans, Dropout dropout) {
    using algorithm::ScoreUnits;
    return natural() ? softmax_in<ScoreUnits::natural>(p, spans, dropout)
                     : softmax_in<ScoreUnits::base2>(p, spans, dropout);
  }
  template <algorithm::ScoreUnits kUnits, class Dropout>
  bool softmax_in(const Piece& p, const RowSpans& spans, Dropout dropout) {
    SoftmaxState& rows = state(p.tile);
    float* scores = scratch_ + layout_.scores;
    constexpr int kVecs = Product::kQkVecs;
    return problem_.lse.present ? softmax_tile<Isa, 5, kUnits, kVecs>(
                                      scores, tile_max(), p.rows, spans, factor(p), rows, dropout)
                                : softmax_tile<Isa, Isa::kExp2Degree, kUnits, kVecs>(
                                      scores, tile_max(), p.rows, spans, factor(p), rows, dropout);
  }

  // Whether nothing was added to the tile's output yet.
  bool start(int tile) {
    const bool first = (started_ >> tile & 1U) == 0;
    started_ |= 1U << tile;
    return first;
  }

  template <OutputKind kKind>
  void multiply_values(const Piece& p, const RowSpans& spans) {
    const ScratchOutput<Isa, kKind> to{output(p.tile), layout_.value_stride, state(p.tile).rescale};
    output_tile<Isa, QueriesInLanes>(scratch_ + layout_.scores, scratch_ + layout_.values,
                                     layout_.value_stride, layout_.value_stride,
                                     SpanWords<Isa::kGroup>{spans}, p.rows, to);
  }

  // The additive tile from the piece's key `begin` on, a multiple of kSpanKeys.
  void add(const Piece& p, int begin = 0) {
    const TilePlace place{task_.batch,     task_.head,      p.row,     p.rows,
                          p.first + begin, p.count - begin, p.partial, p.masked};
    additive_tile<Isa>(problem_, tensors_, call_.band, alibi_slope_, place,
                       scratch_ + layout_.additive + static_cast<int64_t>(begin) * kBlockM);
    if (!p.masked || !call_.mask.functions) return;
    const KeySpan asked =
        asked_keys(begin, p.count, [&](int key, int keys) __attribute__((always_inline)) {
          return kept_of_keys(p.row, p.first + key, keys);
        });
    if (asked.count() <= 0) return;
    mask_tile<Isa>(call_.mask_function, call_.mask.blocks,
                   {task_.batch, task_.head, p.row, p.first + asked.begin}, asked.count(),
                   scratch_ + layout_.additive + static_cast<int64_t>(asked.begin) * kBlockM,
                   scratch_ + layout_.functions);
  }

  // alive_keys() where functions have a part in the mask: by the additive tiles themselves.
  __attribute__((noinline)) const uint8_t* alive_keys_by_functions(int64_t first, int count,
                                                                   uint8_t* alive) {
    for (int key = 0; key < count; ++key) alive[key] = 0;
    for (int tile = 0; tile < tiles_; ++tile) {
      const Piece p = piece(tile, first, count);
      const bool all = !p.partial && !p.masked;
      if (p.count > 0 && !all) add(p);
      for (int key = 0; key < p.count; ++key) {
        const float* row = scratch_ + layout_.additive + static_cast<int64_t>(key) * kBlockM;
        int attended = all ? 1 : 0;
        for (int i = 0; i < p.rows && !all; ++i) attended |= row[i] != kMinusInfinity ? 1 : 0;
        alive[key] |= static_cast<uint8_t>(attended);
      }
    }
    return alive;
  }

  void clear_unless_started(int tile) {
    if ((started_ >> tile & 1U) != 0) return;
    for (int64_t i = 0; i < layout_.output_tile; i += Isa::kLanes)
      Isa::store(output(tile) + i, Isa::zero());
  }

  // The rows' factors: what normalises their output. Writes their LSE.
  __attribute__((noinline)) const float* finish(int tile) {
    SoftmaxState& softmax = state(tile);
    finish_rows<Isa>(problem_, tensors_, task_.batch, task_.head, tile_row(tile), tile_rows(tile),
                     softmax.max, softmax.sum, call_.scale.units, softmax.rescale);
    return softmax.rescale;
  }

  const ForwardCall& call_;
  const Problem& problem_;
  const AttentionTensors& tensors_;
  const PrefillRows& task_;
  int64_t element_bytes_;
  int64_t kv_head_;
  TileScratch layout_;
  float* scratch_;
  int tiles_;
  float alibi_slope_;
  RowPrefetch ahead_[2];
  int ahead_rows_ = 0;
  unsigned started_ = 0;    // bit per tile: its output holds something
  QueryCodes query_codes_;  // where products are of codes
};

template <class Isa, class T, class Product = Isa>
class PrefillTask : protected PrefillTiles<Isa, Product> {
  using Base = PrefillTiles<Isa, Product>;

 public:
  PrefillTask(const ForwardCall& call, const PrefillRows& task, float* scratch,
              const TileScratch& layout)
      : Base(call, task, scratch, layout, sizeof(T)) {}

  void run() { run_as(*this); }

 protected:
  // task: this, as the class that says how queries, keys and values are loaded.
  template <class Task>
  FULMEN_INLINE void run_as(Task& task) {
    task.load_queries();
    const auto keys = call_.band.any(task_.row_begin, task_.row_end);
    // Key tiles begin at multiples of block_n, so that a row's result does not depend on which rows
    // share its task.
    int64_t next = this->next_attended(keys.begin / call_.block_n * call_.block_n, keys.end);
    while (next < keys.end) {
      const int64_t first = next;
      const int count =
          static_cast<int>(keys.end - first < call_.block_n ? keys.end - first : call_.block_n);
      task.load_keys_and_values(first, count);
      next = this->next_attended(first + call_.block_n, keys.end);
      for (int tile = 0; tile < tiles_; ++tile) {
        this->fetch_part(next, keys.end, tile);
        this->attend(tile, first, count);
      }
    }
    for (int tile = 0; tile < tiles_; ++tile) {
      this->clear_unless_started(tile);
      store(tile, this->output(tile));
    }
  }

  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::kv_head_, Base::layout_,
      Base::scratch_, Base::tiles_;

  template <class Place = WordRows>
  void load_queries(Place place = {}) {
    for (int tile = 0; tile < tiles_; ++tile) {
      pack_queries<Isa>(
          element<T>(tensors_.q, problem_.q, task_.batch, this->tile_row(tile), task_.head),
          problem_.q.strides[1], this->tile_rows(tile), problem_.head_dim, this->queries(tile),
          place);
      this->clear_state(tile);
    }
  }

  void load_keys_and_values(int64_t first, int count) {
    if constexpr (Isa::kGroup == 1) {
      if (problem_.quantized_kv()) return unpack_keys_and_values(first, count);
    }
    with_rows(first, count, [&](auto k, auto v) {
      pack_keys<Isa>(k, count, problem_.head_dim, scratch_ + layout_.keys, layout_.key_stride);
      load_values(v, first, count);
    });
  }
  // Without the keys.
  void load_values_of(int64_t first, int count) {
    if constexpr (Isa::kGroup == 1) {
      if (problem_.quantized_kv()) return unpack_values(first, count);
    }
    with_rows(first, count, [&](auto, auto v) { load_values(v, first, count); });
  }
  void unpack_keys_and_values(int64_t first, int count) {
    NoLinesAhead none;
    UnpackedRows<Isa>(call_, UnpackedRows<Isa>::Of::k, task_.batch, kv_head_)
        .load(first, count, scratch_ + layout_.keys, layout_.key_stride, nullptr, none);
    unpack_values(first, count);
  }
  void unpack_values(int64_t first, int count) {
    using Source = UnpackedRows<Isa>;
    NoLinesAhead none;
    uint8_t alive[kMaxBlockN];
    Source(call_, Source::Of::v, task_.batch, kv_head_)
        .load(first, count, scratch_ + layout_.values, layout_.value_stride,
              keys_alive(first, count, alive), none);
  }
  // Which keys some row attends: what others hold must not reach a result. alive has a place for
  // each; null is all.
  const uint8_t* keys_alive(int64_t first, int count, uint8_t* alive) {
    return call_.mask.functions ? this->alive_keys_by_functions(first, count, alive)
                                : alive_keys<Isa>(call_, task_, first, count, alive);
  }
  template <class Rows>
  void load_values(Rows v, int64_t first, int count) {
    uint8_t alive[kMaxBlockN];
    // Whether v is finite is cheaper to see than which pairs a function masks; where it is, no key
    // has to be left out.
    const bool all_may_be_read =
        call_.mask.functions && all_finite<Isa>(v, count, problem_.head_dim_v);
    pack_values<Isa>(v, count, problem_.head_dim_v, scratch_ + layout_.values, layout_.value_stride,
                     all_may_be_read ? nullptr : keys_alive(first, count, alive));
  }
  // load(k, v) with the rows of at most kMaxBlockN keys.
  template <class Load>
  void with_rows(int64_t first, int count, Load load) {
    if (call_.pages.pages != nullptr) {
      int64_t k_rows[kMaxBlockN], v_rows[kMaxBlockN];
      list_rows(call_.pages, problem_.k, first, count, k_rows);
      list_rows(call_.pages, problem_.v, first, count, v_rows);
      return load(ListedRows<T>{head_of(tensors_.k, problem_.k), k_rows},
                  ListedRows<T>{head_of(tensors_.v, problem_.v), v_rows});
    }
    load(StridedRows<T>{element<const T>(tensors_.k, problem_.k, task_.batch, first, kv_head_),
                        problem_.k.strides[1]},
         StridedRows<T>{element<const T>(tensors_.v, problem_.v, task_.batch, first, kv_head_),
                        problem_.v.strides[1]});
  }
  const T* head_of(const Tensor& tensor, const TensorSpec& spec) const {
    return element<const T>(tensor, spec, 0, 0, kv_head_);
  }

  // o: the tile's output, [rows][value_stride].
  void store(int tile, const float* o) {
    store_output<Isa>(
        o, layout_.value_stride, this->finish(tile), this->tile_rows(tile), problem_.head_dim_v,
        element<T>(tensors_.out, problem_.out, task_.batch, this->tile_row(tile), task_.head),
        problem_.out.strides[1]);
  }
};

template <class Isa, class T>
void prefill_task(const ForwardCall& call, const PrefillRows& task, float* scratch) {
  const TileScratch layout =
      tile_scratch(*call.problem, Isa::kLanes, Isa::kGroup, call.block_n, call.tiles_per_task);
  PrefillTask<Isa, T>(call, task, scratch, layout).run();
}

}  // namespace fulmen::cpu
