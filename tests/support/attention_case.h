// One attention call built from a short description, with everything around it that can go wrong
// made visible: guard pages, read-only inputs, NaN in every gap, poisoned outputs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "support/guarded_buffer.h"
#include "support/random.h"

namespace fulmen::testing {

// For grids: whole operands of every instruction set, and dims between them.
inline constexpr std::array<int64_t, 13> kHeadDims{16,  32,  40,  59,  64,  80, 96,
                                                   111, 128, 160, 192, 224, 256};
// Beyond 256: of q and k; v's end at kMaxHeadDimV.
inline constexpr std::array<int64_t, 5> kWideHeadDims{288, 320, 384, 512, 576};

// Bits, so that NaN counts, too.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

enum class Layout {
  bshd,        // [batch, seqlen, head, dim]: also interleaved heads
  bhsd,        // head-major
  sbhd,        // sequence first
  packed_qkv,  // q, k and v rows beside each other in one buffer; bshd where the shapes do not
               // allow it
  odd_strides  // bshd with gaps of 3, 5 and 7 elements, so rows start at odd addresses
};

// What a bool mask looks like; where nothing else is said, for each head and sequence that has one
// of its own.
enum class KeepPattern {
  rows,           // keep_share of the keys for a random half of the rows, a prefix for the others
  triangle,       // what Causal::bottom_right says
  blocks,         // of 64 by 64: none, some or all of it, as drawn
  left_padding,   // the last keys, a number that is drawn
  right_padding,  // the first keys
  one_key,        // one key of one row in each block of 64 by 64
  nothing,        // no key
};

// What shares a scale of k, or of v.
enum class ScaleOf { none, tensor, head, batch_and_head, token, channel };

struct CaseSpec {
  DType dtype = DType::fp32;
  int64_t batch = 1;
  int64_t seqlen_q = 1;  // of every sequence, or the most that lengths are drawn from
  int64_t seqlen_k = 1;
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 1;
  int64_t head_dim_v = 1;
  Layout layout = Layout::bshd;
  GuardedBuffer::Flush flush = GuardedBuffer::Flush::end;
  Causal causal = Causal::none;
  int64_t window_left = -1;
  int64_t window_right = -1;
  float softcap = 0;
  float scale = 0;  // 0: the default
  bool bias = false;
  DType bias_dtype = DType::fp32;
  std::array<bool, 3> bias_broadcast{};  // over batch, head, query
  bool huge_bias = false;                // rows whose bias is large everywhere
                                         // (support/huge_bias.h)
  bool keep = false;
  std::array<bool, 3> keep_broadcast{};
  KeepPattern keep_pattern = KeepPattern::rows;
  double keep_share = 0.7;     // KeepPattern::rows
  int64_t keep_documents = 0;  // > 0: instead documents of so many tokens, each of which attends
                               // itself; queries are the last tokens
  bool nan_in_masked = false;  // K and V rows that no query may attend hold NaN
  int alibi = 0;               // 0 none, 1 a slope a head, 2 a slope a batch and head
  bool sinks = false;
  bool values_in_keys = false;  // v is the first dims of k's rows
  bool lse = true;
  float q_size = 1;
  float kv_size = 1;
  float dropout = 0;
  // out and lse are given, by the double-precision reference; the gradients are what a kernel
  // computes.
  bool backward = false;
  bool dlse = false;
  // Over batch, head, query; a bias's dims that are broadcast always are.
  std::array<bool, 3> dbias_summed{};
  bool packed_q = false;  // by cu_seqlens_q, with rows before and after that belong to no sequence
  bool packed_k = false;
  bool used_k = false;    // seqlens_k
  int64_t page_size = 0;  // 0: no pages
  bool leftpad_k = false;
  bool even_lengths = false;  // every sequence has the most
  // k and v as they are stored, where that is not q's dtype without a scale.
  bool quantized = false;
  DType k_dtype = DType::int8, v_dtype = DType::int8;
  ScaleOf k_scale = ScaleOf::none, v_scale = ScaleOf::none;
  DType scale_dtype = DType::fp32;
  bool q_scale = false;
  // Which gradients are wanted: dq, dk, dv, and dbias and dsinks where there are a bias and sinks.
  std::array<bool, 5> gradients{true, true, true, true, true};
  Precision precision = Precision::exact;
};
std::string to_string(const CaseSpec& spec);
inline bool variable_lengths(const CaseSpec& s) {
  return s.packed_q || s.packed_k || s.used_k || s.page_size > 0 || s.leftpad_k;
}

// A small case of any features.
CaseSpec random_spec(Random& random);
// Sequences of different lengths for a case: packed, padded or paged; backward: packed.
void draw_variable_lengths(CaseSpec& spec, Random& random);
// Formats of k and v, and their scales, for a forward case; block formats round its dims up.
void draw_quantized(CaseSpec& spec, Random& random);
// random_spec() for the backward pass, dropout included.
CaseSpec random_backward_spec(Random& random);

class Case {
 public:
  Case(const CaseSpec& spec, Random& random);

  CaseSpec spec;
  AttentionTensors tensors;
  AttentionOptions options;

  // The Problem; the test stops where make_problem refuses it.
  Problem problem() const;
  // Returns false where all sequences of a packed tensor are empty and nothing lies around them.
  bool has_rows() const {
    return (!spec.packed_q || rows_q_ > 0) && (!spec.packed_k || rows_k_ > 0);
  }
  // Fills the outputs, and their gaps, with NaN.
  void poison_outputs();
  // Which byte outside an output's logical elements was written, or "".
  std::string stray_writes() const;
  // Logical out [batch, seqlen_q, head, head_dim_v] and lse [batch, head, seqlen_q] as floats,
  // row-major; of packed tensors the rows of sequences.
  std::vector<float> out_values() const;
  std::vector<float> lse_values() const;
  // All outputs of the pass, one after the other.
  std::vector<float> output_values() const;
  // Logical element of a tensor.
  static float get(const Tensor& tensor, const std::array<int64_t, 4>& index);
  static void set(const Tensor& tensor, const std::array<int64_t, 4>& index, float value);
  // False for this key in all rows of the keep-mask, which the case has.
  void mask_key(int64_t key);
  // A kernel that writes an input stops the test. Edit inputs before.
  void make_inputs_read_only();

 private:
  Tensor strided(DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t dim);
  Tensor query_rows(int64_t dim) {
    return strided(spec.dtype, spec.packed_q ? 1 : spec.batch,
                   spec.packed_q ? rows_q_ : spec.seqlen_q, spec.num_heads, dim);
  }
  Tensor key_rows(int64_t dim);
  // case_sequences.cpp: lengths and tables, and where they put keys and queries.
  void draw_sequences(Random& random);
  Tensor int32_tensor(const std::vector<int>& values, int64_t rows);
  std::array<int64_t, 4> key_at(int64_t b, int64_t j, int64_t head, int64_t d) const;
  void fill_queries(const Tensor& tensor, float size, Random& random);
  void fill_keys(const Tensor& tensor, float size, Random& random);
  bool belongs_to_sequence(Tensor AttentionTensors::* tensor,
                           const std::array<int64_t, 4>& at) const;
  Tensor row_statistics();
  void packed_inputs();
  Tensor broadcastable(DType dtype, const std::array<bool, 3>& broadcast);
  void fill_normal(const Tensor& tensor, float size, Random& random);
  void fill_keep(Random& random);
  void fill_keep_pattern(const std::array<int64_t, 4>& head, Random& random);
  void hide_nan_behind_mask();
  // case_quantized.cpp: k and v, which are filled, become what the spec stores.
  void quantize_keys_and_values(Random& random);
  Tensor quantized(const Tensor& from, DType dtype);
  Tensor scales(const Tensor& of, DType of_dtype, ScaleOf share, Random& random);
  std::byte* allocate(std::size_t bytes);

  std::vector<float> values(Tensor AttentionTensors::* tensor) const;
  void add_gradients(Random& random);
  void forward_results();
  // The tensor written last among buffers_ is an output of the pass.
  void output(Tensor AttentionTensors::* tensor) {
    outputs_.push_back({tensor, buffers_.size() - 1});
  }

  struct Output {
    Tensor AttentionTensors::* tensor;
    std::size_t buffer;
  };
  // Where a sequence lies; see algorithm/sequences.h, with which this shares no code.
  struct Sequence {
    int64_t q_row = 0, q_len = 0, k_row = 0, k_len = 0;
  };
  std::vector<Sequence> sequences_;
  std::vector<std::vector<int>> pages_;  // of each sequence
  int64_t rows_q_ = 0, rows_k_ = 0;      // of packed tensors
  int64_t num_pages_ = 0;
  std::vector<GuardedBuffer> buffers_;
  std::vector<Output> outputs_;
};

}  // namespace fulmen::testing
