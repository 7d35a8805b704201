// Prefill with q k^T in int8:
//
//   keys of all heads --> codes, once a call        code_keys.h
//   Q tiles --> [words of codes][64], a scale a row
//   S^T[keys, 64] = K Q^T in int8;  q . k = S scale + q . mean
//
// and then as prefill: probabilities and values are not rounded further.
#pragma once

#include "cpu/prefill/vector.h"
#include "cpu/prefill_int8/code_keys.h"

namespace fulmen::cpu {

template <class Isa, class T, class Product>
class PrefillInt8Task : protected PrefillTask<Isa, T, Product> {
  using Base = PrefillTask<Isa, T, Product>;
  using Numbers = typename Product::Numbers;
  friend Base;

 public:
  PrefillInt8Task(const ForwardCall& call, const PrefillRows& task, float* scratch,
                  const TileScratch& layout, const Int8Places& places)
      : Base(call, task, scratch, layout),
        rows_(scratch + places.rows),
        mean_(scratch + places.mean),
        dims_(places.dims) {
    this->query_codes_ = places.query_codes(scratch);
  }

  void run() { this->run_as(*this); }

 protected:
  using Base::call_, Base::problem_, Base::tensors_, Base::task_, Base::tiles_;

  template <class Place = WordRows>
  void load_queries(Place place = {}) {
    key_mean<Numbers>(call_, task_.batch, this->kv_head_, mean_);
    for (int tile = 0; tile < tiles_; ++tile) {
      const int rows = code_queries(tile);
      if constexpr (unit_words<Product>() > 1) {
        pack_units(rows, this->queries(tile));
      } else {
        pack_queries<Numbers>(rows_, dims_, rows, words_of<Product>(problem_.head_dim),
                              this->queries(tile), place);
      }
      this->clear_state(tile);
    }
  }
  void load_keys_and_values(int64_t first, int count) { this->load_values_of(first, count); }

  // Rows of words, and what belongs to them.
  int code_queries(int tile) {
    const int rows = this->tile_rows(tile);
    pack_keys<Numbers>(StridedRows<T>{element<const T>(tensors_.q, problem_.q, task_.batch,
                                                       this->tile_row(tile), task_.head),
                                      problem_.q.strides[1]},
                       rows, problem_.head_dim, rows_, dims_);
    const QueryCodes& codes = this->query_codes_;
    for (int row = 0; row < kBlockM; ++row) {
      CodedQuery coded{};
      if (row < rows) coded = code_query<Product>(rows_ + row * dims_, mean_, dims_);
      const int64_t at = static_cast<int64_t>(tile) * kBlockM + row;
      codes.scales[at] = coded.scale;
      codes.starts[at] = coded.start;
      codes.offsets[at] = coded.offset;
    }
    return rows;
  }

  // Rows of words -> [units][kBlockM][kUnitWords]; rows up to the next whole vector become zeros.
  __attribute__((noinline)) void pack_units(int rows, float* out) {
    constexpr int64_t kUnit = unit_words<Product>();
    const int64_t words = code_words<Product>(problem_.head_dim);
    for (int row = 0; row < round_up(rows, Isa::kLanes); ++row) {
      const float* from = rows_ + row * dims_;
      for (int64_t word = 0; word < words; ++word) {
        const bool exists = row < rows && word < words_of<Product>(problem_.head_dim);
        out[(word / kUnit * kBlockM + row) * kUnit + word % kUnit] = exists ? from[word] : 0;
      }
    }
  }

  float* rows_;  // [kBlockM][dims]
  float* mean_;
  int64_t dims_;
};

template <class Isa, class T, class Product>
void prefill_int8_task(const ForwardCall& call, const PrefillRows& task, float* scratch) {
  const auto layout =
      int8_scratch<Product>(*call.problem, Isa::kLanes, call.block_n, call.tiles_per_task);
  PrefillInt8Task<Isa, T, Product>(call, task, scratch, layout, layout.places).run();
}

template <class Isa, class T, class Product>
void code_keys(const ForwardCall& call, const KeyCodesTask& task, float* scratch) {
  ScratchCutter cut;
  const Int8Places places = int8_places(*call.problem, Isa::kLanes, call.tiles_per_task, cut);
  KeyCoder<Product, T>(call, task, scratch + places.rows, scratch + places.mean).run();
}

template <class Isa, class Product>
int64_t int8_floats(const Problem& problem, int block_n, int tiles) {
  return int8_scratch<Product>(problem, Isa::kLanes, block_n, tiles).total;
}

// A table's tasks. Product: codes beside values of Isa.
template <class Isa, class Product>
constexpr Int8Tasks int8_tasks() {
  return {.codes = Product::kGroup,
          .unit_words = unit_words<Product>(),
          .prefill_task = {prefill_int8_task<Isa, float, Product>,
                           prefill_int8_task<Isa, Fp16, Product>,
                           prefill_int8_task<Isa, Bf16, Product>},
          .code_keys = {code_keys<Isa, float, Product>, code_keys<Isa, Fp16, Product>,
                        code_keys<Isa, Bf16, Product>},
          .scratch_floats = int8_floats<Isa, Product>};
}

}  // namespace fulmen::cpu
