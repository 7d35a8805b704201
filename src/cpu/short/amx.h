// Attention over up to 128 keys on matrix tiles (AMX): the short task's rows of scores, keys in
// lanes, with its two products on tiles. Q is a left operand as it lies and bias is read as it
// lies; K is transposed, V's neighbouring rows become pairs, and P is what the softmax leaves.
//
// Units of 32 query rows, since tiles fall asleep when the vectors between two products take more
// than some 1,600 cycles.
#pragma once

#include "cpu/amx/operands.h"
#include "cpu/amx/product.h"
#include "cpu/short/rows.h"
#include "cpu/tile/finish_rows.h"

namespace fulmen::cpu {

template <class Isa, class T>
class AmxShortTask : private ShortRows<Isa> {
  using Base = ShortRows<Isa>;
  using Tiles = typename Isa::TileInstructions;
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;

 public:
  AmxShortTask(const ForwardCall& call, const PrefillRows& task, float* scratch,
               const ShortScratch& layout)
      : Base(call, task, scratch, layout, sizeof(T)),
        word_tiles_(tiles_of(words_of<Isa>(problem_.head_dim))) {}

  void run() {
    Tiles::configure();
    units();
    Tiles::release();
  }

 private:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::layout_, Base::scratch_,
      Base::rows_, Base::planes_;

  void units() {
    fetch_next_rows();
    for (int plane = 0; plane < planes_; ++plane) pack(plane);
    const PrefillRows whole = task_;
    for (int64_t row = whole.row_begin; row < whole.row_end; row += kUnitRows) {
      task_.row_begin = row;
      task_.row_end = whole.row_end - row < kUnitRows ? whole.row_end : row + kUnitRows;
      rows_ = static_cast<int>(task_.row_end - row);
      unit();
    }
    // It waits until all have reached memory.
    if (call_.stream_output && task_.next == nullptr) Isa::end_streams();
  }

  void unit() {
    multiply_keys();
    const bool general = this->general();
    for (int plane = 0; !general && plane < planes_; ++plane) finish_scores(plane);
    this->softmax(general, [this] { fetch_parts(2); });
    multiply_values();
    if (planes_ == 0) clear_rows();
    store();
  }

  float* keys(int plane) { return scratch_ + layout_.keys + plane * layout_.key_plane; }
  float* values(int plane) {
    return scratch_ + layout_.values + plane * layout_.value_stride * (kBlockM / Isa::kGroup);
  }

  // A plane's K^T in tiles [words / 16][4], and V's pairs of rows, zeros to the end of their last
  // tiles' words.
  void pack(int plane) {
    const int count = this->plane_keys(plane), words = words_of<Isa>(problem_.head_dim);
    const int64_t first = static_cast<int64_t>(plane) * kBlockM;
    const auto place = [](int word, int key) __attribute__((always_inline)) {
      return static_cast<int64_t>(word / kTile * (kBlockM / kTile) + key / kTile) * kTileFloats +
             word % kTile * kTile;
    };
    pack_queries<Isa>(element<const T>(tensors_.k, problem_.k, task_.batch, first, this->kv_head_),
                      problem_.k.strides[1], count, problem_.head_dim, keys(plane), place);
    for (int word = words; word % kTile != 0; ++word) {
      for (int key = 0; key < count; key += kTile)
        Isa::store(keys(plane) + place(word, key), Isa::zero());
    }
    uint8_t alive[kBlockM];
    const T* v = element<const T>(tensors_.v, problem_.v, task_.batch, first, this->kv_head_);
    pack_values<Isa>(StridedRows<T>{v, problem_.v.strides[1]}, count, problem_.head_dim_v,
                     values(plane), layout_.value_stride, this->alive_keys_of(first, count, alive));
    for (int word = words_of<Isa>(count); word % kTile != 0; ++word) {
      for (int64_t d = 0; d < layout_.value_stride; d += kLanes)
        Isa::store(values(plane) + word * layout_.value_stride + d, Isa::zero());
    }
  }

  // Raw products: scores(plane)[row][key].
  void multiply_keys() {
    const T* q = element<const T>(tensors_.q, problem_.q, task_.batch, task_.row_begin, task_.head);
    const int64_t q_stride = problem_.q.strides[1];
    const float* queries = reinterpret_cast<const float*>(q);
    int64_t stride = q_stride / Isa::kGroup;
    const bool in_place = problem_.head_dim % (kTile * Isa::kGroup) == 0 &&
                          q_stride % Isa::kGroup == 0 && rows_ % kTile == 0;
    if (!in_place) {
      queries = scratch_ + layout_.queries;
      stride = layout_.query_stride;
      pack_keys<Isa>(StridedRows<T>{q, q_stride}, rows_, problem_.head_dim,
                     scratch_ + layout_.queries, stride);
    }
    for (int plane = 0; plane < planes_; ++plane) {
      multiply<false>(
          {queries, stride}, {keys(plane), kTile, kTileFloats * (kBlockM / kTile), kTileFloats},
          {this->scores(plane), kBlockM}, tiles_of(this->plane_keys(plane)), word_tiles_);
    }
  }
  void multiply_values() {
    const SumTiles output{scratch_ + layout_.output, layout_.value_stride};
    const int columns = tiles_of(layout_.value_stride);
    for (int plane = 0; plane < planes_; ++plane) {
      const LeftTiles p{this->scores(plane), kBlockM};
      const RightTiles v{values(plane), layout_.value_stride, kTile * layout_.value_stride, kTile};
      const int words = tiles_of(words_of<Isa>(this->plane_keys(plane)));
      plane == 0 ? multiply<false>(p, v, output, columns, words)
                 : multiply<true>(p, v, output, columns, words);
    }
  }
  template <bool kAccumulate>
  void multiply(const LeftTiles& a, const RightTiles& b, const SumTiles& c, int column_tiles,
                int word_tiles) {
    if (rows_ > kTile) {
      RowsProduct<Tiles, 2, kAccumulate>::run(a, b, c, column_tiles, word_tiles);
    } else {
      RowsProduct<Tiles, 1, kAccumulate>::run(a, b, c, column_tiles, word_tiles);
    }
  }

  // Raw products -> with a bias scores, -inf up to a whole vector, and their lanes' maxima.
  void finish_scores(int plane) {
    with_bias_type(problem_.bias.dtype, [&](auto* type) __attribute__((always_inline)) {
      using BiasT = std::remove_pointer_t<decltype(type)>;
      const BiasT* bias = nullptr;
      if (problem_.bias.present) {
        bias = element<const BiasT>(tensors_.bias, problem_.bias, task_.batch, task_.head,
                                    task_.row_begin) +
               plane * kBlockM;
      }
      if (this->plane_keys(plane) == kBlockM) {
        finish_scores<kBlockM>(plane, bias);
      } else {
        finish_scores<0>(plane, bias);
      }
    });
  }
  // kKeys: the plane's where known, else 0.
  template <int kKeys, class BiasT>
  __attribute__((noinline)) void finish_scores(int plane, const BiasT* bias) {
    const int count = kKeys > 0 ? kKeys : this->plane_keys(plane);
    const Vec scale = Isa::set1(problem_.softmax_scale);
    for (int row = 0; row < rows_; ++row) {
      if (row % Base::kQuad == 0) fetch_parts(1);
      float* s = this->scores(plane) + row * kBlockM;
      Vec max = Isa::set1(-__builtin_inff());
#pragma GCC unroll 4
      for (int key = 0; key < count; key += kLanes) {
        const int left = count - key;
        Vec x = Isa::load(s + key);
        if (bias != nullptr) {
          const BiasT* b = bias + row * problem_.bias.strides[2] + key;
          x = Isa::fused(x, scale,
                         left >= kLanes ? Isa::load_as_float(b) : Isa::load_as_float(b, left));
        }
        if (left < kLanes) {
          x = Isa::select_less(Isa::iota(), Isa::set1(static_cast<float>(left)), x,
                               Isa::set1(-__builtin_inff()));
        }
        if (bias != nullptr || left < kLanes) Isa::store(s + key, x);
        max = Isa::max(max, x);
      }
      Isa::store(this->lane_max(plane) + row * kLanes, max);
    }
  }

  void store() {
    const float* tile = scratch_ + layout_.output;
    finish_rows<Isa>(problem_, tensors_, task_.batch, task_.head, task_.row_begin, rows_,
                     this->row_max(), this->row_sum(), call_.scale.units, this->row_factor());
    T* out = element<T>(tensors_.out, problem_.out, task_.batch, task_.row_begin, task_.head);
    if (!this->streams_) {
      store_output<Isa>(tile, layout_.value_stride, this->row_factor(), rows_, problem_.head_dim_v,
                        out, problem_.out.strides[1]);
      return;
    }
    for (int row = 0; row < rows_; ++row, out += problem_.out.strides[1]) {
      const Vec factor = Isa::broadcast(this->row_factor() + row);
      for (int64_t d = 0; d < layout_.value_stride; d += kLanes) {
        Isa::stream_from_float(out + d,
                               Isa::mul(Isa::load(tile + row * layout_.value_stride + d), factor));
      }
    }
  }
  void clear_rows() {  // no keys: empty rows
    for (int row = 0; row < kUnitRows; ++row) {
      this->row_max()[row] = -__builtin_inff();
      this->row_sum()[row] = 0;
    }
    for (int64_t i = 0; i < kUnitRows * layout_.value_stride; i += kLanes)
      Isa::store(scratch_ + layout_.output + i, Isa::zero());
  }

  // Heads that lie side by side, whose rows are 256 bytes together, are fetched at once, a share of
  // the rows during each of the heads before: lines one by one, a row's length apart, arrive at
  // half of that speed.
  int64_t heads_at_once() const {
    constexpr int64_t kBytes = 256;
    const Problem& p = problem_;
    const int64_t row = p.head_dim * static_cast<int64_t>(sizeof(T));
    const bool adjacent = p.q.strides[2] == p.head_dim && p.k.strides[2] == p.head_dim &&
                          p.v.strides[2] == p.head_dim;
    const bool alike = p.head_dim_v == p.head_dim && p.num_kv_heads == p.num_heads &&
                       task_.row_end - task_.row_begin == p.seqlen_q;
    return adjacent && alike && kBytes % row == 0 && p.num_heads % (kBytes / row) == 0
               ? kBytes / row
               : 1;
  }
  // Sequences that caches do not keep: what this worker will read next, in parts among this task's
  // vectors. Four rows of scores take one, their exponentials two.
  static constexpr int kParts = 3 * kUnitRows / Base::kQuad;  // of a unit and plane
  void fetch_next_rows() {
    if (!call_.stream_output) return;
    const int64_t heads = heads_at_once(), part = task_.head % heads;
    PrefillRows from = task_;  // the heads to come
    if (heads > 1) {
      from.head += heads - part;
      if (from.head == problem_.num_heads) {
        from.head = 0;
        if (++from.batch == problem_.batch) return;
      }
    } else {
      if (task_.next == nullptr) return;
      from = *task_.next;
    }
    const auto rows = [&](const Tensor& tensor, const TensorSpec& spec, int64_t dim, int64_t head,
                          int64_t first, int64_t count) {
      const int64_t begin = count * part / heads, end = count * (part + 1) / heads;
      return this->rows_of(tensor, spec, dim * heads, from, head, first + begin, end - begin);
    };
    const int64_t kv_head = from.head / problem_.group_size();
    next_[0] = rows(tensors_.q, problem_.q, problem_.head_dim, from.head, from.row_begin,
                    from.row_end - from.row_begin);
    next_[1] = rows(tensors_.k, problem_.k, problem_.head_dim, kv_head, 0, this->keys_);
    next_[2] = rows(tensors_.v, problem_.v, problem_.head_dim_v, kv_head, 0, this->keys_);
    const auto parts = static_cast<int>((rows_ + kUnitRows - 1) / kUnitRows) * planes_ * kParts;
    if (parts == 0) return;
    next_rows_ = (next_[0].rows + next_[1].rows + next_[2].rows + parts - 1) / parts;
  }
  FULMEN_INLINE void fetch_parts(int parts) { fetch_any_rows<Isa>(next_, parts * next_rows_); }

  int word_tiles_;       // of a key or query row
  RowPrefetch next_[3];  // queries, keys and values of the heads to come
  int next_rows_ = 0;    // of them a part
};

template <class Isa, class T>
void amx_short_task(const ForwardCall& call, const PrefillRows& task, float* scratch) {
  const ShortScratch layout = short_scratch(*call.problem, Isa::kLanes, Isa::kGroup, kTile);
  AmxShortTask<Isa, T>(call, task, scratch, layout).run();
}

}  // namespace fulmen::cpu
