#include "tools/verify/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <stdexcept>

#include "tools/tensors/float_conversion.h"

namespace fulmen::tools {
namespace {

struct Lengths {
  int64_t q, k;
};
struct Heads {
  int64_t q, kv;
};

constexpr std::array<Heads, 3> kHeads{Heads{4, 4}, Heads{6, 2}, Heads{5, 1}};  // MHA, GQA, MQA
constexpr std::array kFeatureNames{"none",  "causal",   "top-left",   "window",
                                   "bias",  "row bias", "keep",       "alibi",
                                   "sinks", "softcap",  "all at once"};
constexpr std::array kLayoutNames{"bshd", "bhsd", "packed qkv", "odd strides"};

// One view of [batch, seqlen, heads, dim] in a layout; its memory is allocated for what the strides
// reach.
Tensor view(Layout layout, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t dim) {
  if (layout == Layout::bhsd) return Tensor::bhsd(nullptr, dtype, batch, seqlen, heads, dim);
  Tensor tensor = Tensor::bshd(nullptr, dtype, batch, seqlen, heads, dim);
  const int64_t head = row_elements(dtype, dim),
                row = layout == Layout::packed_qkv ? 3 * heads * head : heads * (head + 3) + 1;
  if (layout == Layout::packed_qkv) tensor.strides = {seqlen * row, row, head, 1};
  if (layout == Layout::odd_strides) tensor.strides = {seqlen * row + 5, row, head + 3, 1};
  return tensor;
}

// Allocates memory that starts one element after an aligned address where the layout is odd.
void allocate(NormalPool& pool, const GridCase& c, GridData& data, Tensor& tensor, float factor) {
  if (c.layout != Layout::odd_strides) {
    data.memory.push_back(random_tensor(pool, tensor, factor));
    return;
  }
  Tensor wider = tensor;
  wider.shape[3] += 1;
  data.memory.push_back(random_tensor(pool, wider, factor));
  tensor.data = static_cast<char*>(wider.data) + size_of(tensor.dtype);
}

// k or v: numbers of q's dtype, or quantized ones.
void allocate_stored(NormalPool& pool, const GridCase& c, GridData& data, Tensor& tensor,
                     Tensor& scale, float factor) {
  if (!is_quantized(tensor.dtype)) return allocate(pool, c, data, tensor, factor);
  if (c.token_scales && block_bytes(tensor.dtype) == 0) {
    const auto& s = tensor.shape;
    scale = Tensor::bshd(nullptr, DType::fp32, s[0], s[1], s[2], 1);
  } else {
    scale = scale_of_heads(tensor);
  }
  for (Memory& memory : random_codes(pool, tensor, scale, factor))
    data.memory.push_back(std::move(memory));
}

// Every key of a sequence, or page, becomes its first.
void repeat_first_key(const Tensor& k) {
  const auto bytes = static_cast<std::size_t>(size_of(k.dtype));
  const auto at = [&](int64_t b, int64_t j, int64_t h) {
    return static_cast<char*>(k.data) +
           static_cast<std::size_t>(b * k.strides[0] + j * k.strides[1] + h * k.strides[2]) * bytes;
  };
  for (int64_t b = 0; b < k.shape[0]; ++b) {
    for (int64_t j = 1; j < k.shape[1]; ++j) {
      for (int64_t h = 0; h < k.shape[2]; ++h) {
        std::memcpy(at(b, j, h), at(b, 0, h),
                    static_cast<std::size_t>(row_elements(k.dtype, k.shape[3])) * bytes);
      }
    }
  }
}

// Lengths of a case's sequences, the longest first: all, half, none, a quarter ...
int64_t length_of(int64_t most, int64_t sequence) {
  constexpr int64_t kDivisors[] = {1, 2, 0, 4, 3};
  const int64_t divisor = kDivisors[sequence % 5];
  return divisor == 0 ? 0 : (most + divisor - 1) / divisor;
}

int64_t total_of(int64_t most, int64_t batch) {
  int64_t total = 0;
  for (int64_t b = 0; b < batch; ++b) total += length_of(most, b);
  return total;
}

int64_t pages_of(const GridCase& c) { return (c.seqlen_k + c.page_size - 1) / c.page_size; }

// q, k, v, out and their gradients: views of their shapes in the case's layout.
Tensor operand(const GridCase& c, bool keys, int64_t dim, std::optional<DType> format = {}) {
  const int64_t heads = keys ? c.kv_heads : c.heads;
  const DType dtype = format.value_or(c.dtype);
  if (c.sequences == Sequences::packed)
    return view(c.layout, dtype, 1, total_of(keys ? c.seqlen_k : c.seqlen_q, c.batch), heads, dim);
  if (keys && c.sequences == Sequences::paged)
    return view(c.layout, dtype, c.batch * pages_of(c), c.page_size, heads, dim);
  return view(c.layout, dtype, c.batch, keys ? c.seqlen_k : c.seqlen_q, keys ? c.kv_heads : c.heads,
              dim);
}

void add_int32(GridData& data, Tensor& tensor, const std::vector<int>& values, int64_t rows = 1) {
  const int64_t columns = rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows;
  Memory memory(values.size() * sizeof(int) + 1);
  std::copy(values.begin(), values.end(), static_cast<int*>(memory.data()));
  tensor = {memory.data(), DType::int32, {1, 1, rows, columns}, {0, 0, columns, 1}};
  data.memory.push_back(std::move(memory));
}

// Where the sequences lie; pages in any order.
void add_sequences(const GridCase& c, NormalPool& pool, GridData& data) {
  AttentionTensors& t = data.tensors;
  if (c.sequences == Sequences::even) return;
  std::vector<int> cu_q{0}, cu_k{0}, used;
  for (int64_t b = 0; b < c.batch; ++b) {
    cu_q.push_back(cu_q.back() + static_cast<int>(length_of(c.seqlen_q, b)));
    used.push_back(static_cast<int>(length_of(c.seqlen_k, b)));
    cu_k.push_back(cu_k.back() + used.back());
  }
  if (c.sequences == Sequences::packed) {
    add_int32(data, t.cu_seqlens_q, cu_q);
    add_int32(data, t.cu_seqlens_k, cu_k);
    data.options.max_seqlen_q = c.seqlen_q;
    data.options.max_seqlen_k = c.seqlen_k;
    return;
  }
  add_int32(data, t.seqlens_k, used);
  if (c.sequences != Sequences::paged) return;
  data.options.max_seqlen_k = c.seqlen_k;
  std::vector<int> pages(static_cast<std::size_t>(c.batch * pages_of(c)));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), pool.generator());
  add_int32(data, t.block_table, pages, c.batch);
}

// A row's bias is one number for all keys, or two that are far from each other: a mask of
// finfo.min, and numbers whose product with log2(e) is beyond fp32. The tensor is dense, in fp32 or
// bf16. The logarithm of a row's sum is below what fp32 keeps of such a maximum.
void fill_huge_bias(const Tensor& bias) {
  struct Row {
    float even, odd;  // keys; parts of the largest number
  };
  constexpr std::array<Row, 7> kRows{Row{-1, -1}, {0.8F, 0.8F}, {-0.7F, -0.7F}, {1, 1},
                                     {0, 0},      {-1, -0.9F},  {-1, 0}};
  const bool bf16 = bias.dtype == DType::bf16;
  const float largest = bf16 ? 0x1.FEp127F : 0x1.FFFFFEp127F;
  const int64_t keys = bias.shape[3];
  for (int64_t at = 0; at < bias.shape[0] * bias.shape[1] * bias.shape[2] * keys; ++at) {
    const Row& row = kRows[static_cast<std::size_t>(at / keys) % kRows.size()];
    const float number = largest * (at % keys % 2 == 0 ? row.even : row.odd);
    if (bf16) {
      static_cast<uint16_t*>(bias.data)[at] = to_bf16_bits(number);
    } else {
      static_cast<float*>(bias.data)[at] = number;
    }
  }
}

bool has(const GridCase& c, Feature feature) {
  return c.feature == feature || c.feature == Feature::all_at_once;
}

void add_score_tensors(const GridCase& c, NormalPool& pool, GridData& data) {
  AttentionTensors& t = data.tensors;
  // fp16 has no numbers whose product with log2(e) is beyond fp32: its huge biases are in fp32.
  const DType of_bias = c.huge_bias && c.dtype == DType::fp16 ? DType::fp32 : c.dtype;
  if (has(c, Feature::bias))
    t.bias = Tensor::bhqk(nullptr, of_bias, c.shared_bias ? 1 : c.batch, c.heads, c.seqlen_q,
                          c.seqlen_k);
  // fp32 beside any dtype, the same for all batches and queries.
  if (c.feature == Feature::row_bias)
    t.bias = Tensor::bhqk(nullptr, DType::fp32, 1, c.heads, 1, c.seqlen_k);
  if (c.feature == Feature::bias || c.feature == Feature::row_bias ||
      c.feature == Feature::all_at_once) {
    data.memory.push_back(random_tensor(pool, t.bias));
    if (c.huge_bias && pool.has_values()) fill_huge_bias(t.bias);
  }
  if (has(c, Feature::keep)) {
    const int64_t masks = c.feature == Feature::all_at_once ? c.heads : 1;
    t.keep_mask = Tensor::bhqk(nullptr, DType::boolean, c.batch, masks, c.seqlen_q, c.seqlen_k);
    const std::size_t count = stored_elements(t.keep_mask);
    Memory mask(count + 1);
    pool.fill_mask(mask.data(), count, 0.7);
    // The first query attends to nothing.
    if (count != 0) std::fill_n(static_cast<uint8_t*>(mask.data()), c.seqlen_k, uint8_t{0});
    t.keep_mask.data = mask.data();
    data.memory.push_back(std::move(mask));
  }
  for (const auto& [feature, tensor] :
       {std::pair{Feature::alibi, &t.alibi_slopes}, std::pair{Feature::sinks, &t.sinks}}) {
    if (!has(c, feature)) continue;
    tensor->shape = {1, 1, 1, c.heads};
    tensor->strides = {0, 0, 0, 1};
    data.memory.push_back(random_tensor(pool, *tensor, feature == Feature::alibi ? 0.1F : 1.0F));
  }
}

bool is_long(const Lengths& lengths) { return lengths.q * lengths.k > 512 * 512; }

// One case. Heads, layouts, batch, lse and size of the inputs change with `turn`. Their periods
// share no factor with the number of features, so that each feature meets each of them.
GridCase case_at(std::size_t turn, DType dtype, int64_t dim, const Lengths& lengths,
                 Feature feature) {
  const bool long_one = is_long(lengths);
  const Heads heads = kHeads[turn % kHeads.size()];
  // The standard's largest error over a handful of rows is luck, and the bound with it: single
  // queries come in numbers.
  const int64_t least_batch = lengths.q == 1 ? 16 : 1;
  return {
      .dtype = dtype,
      .batch = long_one ? 1 : least_batch + static_cast<int64_t>(turn / kFeatures % 3),
      .seqlen_q = lengths.q,
      .seqlen_k = lengths.k,
      .heads = heads.q,
      .kv_heads = heads.kv,
      .head_dim = dim,
      .head_dim_v = turn % 7 == 0 ? std::max<int64_t>(1, dim / 2 + 3) : std::min(dim, kMaxHeadDimV),
      .feature = feature,
      .layout = static_cast<Layout>(turn % kLayouts),
      .lse = turn % 5 != 0,
      .large = turn % 13 == 4};
}

// Tensors that the forward pass gives, and those that the backward pass reads and writes besides.
void add_gradients(const GridCase& c, NormalPool& pool, GridData& data, int threads) {
  AttentionTensors& t = data.tensors;
  if (pool.has_values()) {
    AttentionOptions exact = data.options;
    exact.kernel = "cpu.reference.double";
    exact.num_threads = threads;
    if (const Status status = attention(t, exact, "cpu"); !status.ok())
      throw std::runtime_error(status.message());
  }

  t.dout = operand(c, false, c.head_dim_v);
  t.dq = operand(c, false, c.head_dim);
  t.dk = operand(c, true, c.head_dim);
  t.dv = operand(c, true, c.head_dim_v);
  for (Tensor* tensor : std::initializer_list<Tensor*>{&t.dout, &t.dq, &t.dk, &t.dv})
    allocate(pool, c, data, *tensor, 1.0F);
  if (c.dlse) t.dlse = t.lse;
  if (t.bias.data != nullptr && c.dbias && c.sequences == Sequences::even) {
    const auto stored = [&](int dim, int64_t size) {
      const bool broadcast = t.bias.shape[static_cast<std::size_t>(dim)] == 1;
      return broadcast || c.dbias_summed == dim + 1 || c.dbias_summed == 4
                 ? std::min<int64_t>(size, 1)
                 : size;
    };
    t.dbias = Tensor::bhqk(nullptr, t.bias.dtype, stored(0, c.batch), stored(1, c.heads),
                           stored(2, c.seqlen_q), c.seqlen_k);
  }
  t.dsinks = t.sinks;
  for (Tensor* tensor : std::initializer_list<Tensor*>{&t.dlse, &t.dbias, &t.dsinks}) {
    if (tensor->shape != std::array<int64_t, 4>{})
      data.memory.push_back(random_tensor(pool, *tensor));
  }
}

// A mask as people write it, -1e30 or finfo.min, and what is as large on the other side.
std::vector<GridCase> huge_bias_cases(DType dtype) {
  std::vector<GridCase> cases;
  for (const Lengths& lengths : {Lengths{33, 70}, {64, 64}, {1, 147}, {40, 90}}) {
    cases.push_back(case_at(cases.size(), dtype, 64, lengths, Feature::bias));
    GridCase& c = cases.back();
    c.huge_bias = c.lse = true;
    c.large = false;
    c.head_dim_v = c.head_dim;
  }
  return cases;
}

// Each feature three times, each head_dim and pair of lengths several times, but not each with
// each. Slower turns than those of case_at(): else a head_dim would always have the same heads or
// never an lse.
std::vector<GridCase> emulated_grid(DType dtype) {
  constexpr std::array<int64_t, 5> kDims{64, 16, 128, 59, 256};
  constexpr std::array<Lengths, 7> kLengths{Lengths{33, 70}, {1, 147}, {64, 64}, {5, 0},
                                            {100, 41},       {1, 1},   {0, 5}};
  std::vector<GridCase> cases;
  for (std::size_t turn = 0; turn < 3 * kFeatures; ++turn) {
    cases.push_back(case_at(turn, dtype, kDims[turn / 2 % kDims.size()],
                            kLengths[turn / 3 % kLengths.size()],
                            static_cast<Feature>(turn % kFeatures)));
  }
  // Four compute units split so many keys.
  GridCase split = case_at(2, dtype, 64, {2, 1150}, Feature::window);
  split.batch = 1;
  split.lse = true;
  split.window_left = 701;
  split.window_right = -1;
  cases.push_back(split);
  cases.push_back(huge_bias_cases(dtype).front());
  return cases;
}

// Sequences of different lengths, each kind with each feature in one of few shapes; backward:
// packed ones.
std::vector<GridCase> sequence_cases(DType dtype) {
  constexpr std::array<int64_t, 3> kDims{64, 40, 128};
  constexpr std::array<Lengths, 4> kLengths{Lengths{70, 150}, {1, 300}, {130, 64}, {3, 33}};
  constexpr std::array<int64_t, 3> kPageSizes{16, 64, 7};
  std::vector<GridCase> cases;
  std::size_t turn = 0;
  for (const Sequences kind : {Sequences::packed, Sequences::padded, Sequences::paged}) {
    for (int feature = 0; feature < kFeatures; ++feature, ++turn) {
      GridCase c = case_at(turn, dtype, kDims[turn % kDims.size()],
                           kLengths[turn % kLengths.size()], static_cast<Feature>(feature));
      c.batch = 5 + (c.seqlen_q == 1 ? 15 : 0);
      c.sequences = kind;
      c.page_size = kind == Sequences::paged ? kPageSizes[turn / 2 % kPageSizes.size()] : 0;
      cases.push_back(c);
    }
  }
  return cases;
}

// Cases of few queries, with keys enough to be split into tens of parts on a large device. A window
// begins and ends inside a part.
std::vector<GridCase> split_cases(DType dtype, std::initializer_list<int64_t> dims,
                                  const Lengths& lengths) {
  std::vector<GridCase> cases;
  std::size_t turn = 0;
  for (const int64_t dim : dims) {
    for (const Feature feature :
         {Feature::none, Feature::window, Feature::causal, Feature::window, Feature::sinks}) {
      cases.push_back(case_at(turn++, dtype, dim, lengths, feature));
      GridCase& c = cases.back();
      c.batch = 1;
      c.lse = true;
      c.window_left = lengths.k * 7 / 11;
      c.window_right = turn % 2 == 0 ? 17 : -1;
    }
  }
  return cases;
}

// Backward cases of forward ones; dropout, dlse and sums of the bias's gradient in turns that share
// no factor with the others.
std::vector<GridCase> backward_cases(const std::vector<GridCase>& forward, GridSize size) {
  constexpr int64_t kLongDims[] = {64, 128};
  std::vector<GridCase> cases;
  for (std::size_t turn = 0; turn < forward.size(); ++turn) {
    GridCase c = forward[turn];
    // The reference's gradients take five times as long as its output. So half of the quick
    // problems run: every second feature of one pair of lengths, the others of the next pair.
    if (size == GridSize::quick && (turn + turn / kFeatures) % 2 != 0) continue;
    if (c.sequences == Sequences::padded || c.sequences == Sequences::paged) continue;
    const bool long_one = is_long({c.seqlen_q, c.seqlen_k});
    if (long_one && (c.feature > Feature::causal ||
                     std::count(std::begin(kLongDims), std::end(kLongDims), c.head_dim) == 0))
      continue;
    c.pass = Pass::backward;
    c.lse = true;
    c.dropout = turn % 3 == 1 ? 0.1F : turn % 17 == 8 ? 0.6F : 0.0F;
    c.dlse = turn % 5 < 2;
    // exp(score - lse) is as exact as a score is, where fp32 sums of large products err by 1e-5.
    // Standard attention normalises by the same scores, so it does not see that, least of all with
    // a single key.
    c.large = c.large && c.dtype != DType::fp32 && c.seqlen_k > 1 && c.head_dim > 1;
    // A handful of sums would be judged by the luck of the standard's rounding.
    if (c.seqlen_q * c.seqlen_k == 1 && c.feature == Feature::row_bias) continue;
    c.dbias_summed = c.seqlen_q * c.seqlen_k == 1 ? 0 : static_cast<int>(turn / kFeatures % 5);
    if (c.head_dim == 1) c.batch = std::max<int64_t>(c.batch, 16);
    cases.push_back(c);
  }
  return cases;
}

}  // namespace

std::string to_string(const GridCase& c) {
  const std::string backward =
      c.pass == Pass::forward
          ? ""
          : fmt::format(", backward{}{}{}{}", c.dbias ? "" : ", no dbias",
                        c.dropout > 0 ? fmt::format(", dropout {}", c.dropout) : "",
                        c.dlse ? ", dlse" : "",
                        c.dbias_summed > 0 ? fmt::format(", dbias sum {}", c.dbias_summed) : "");
  std::string formats;
  if (c.k_format || c.v_format) {
    formats =
        fmt::format(", k={} v={}{}", to_string(c.k_format.value_or(c.dtype)),
                    to_string(c.v_format.value_or(c.dtype)), c.token_scales ? " by token" : "");
  }
  const std::string precision =
      c.precision == Precision::exact ? "" : fmt::format(", {}", to_string(c.precision));
  constexpr std::array kSequenceNames{"", ", packed", ", padded", ", paged"};
  const std::string sequences =
      kSequenceNames[static_cast<std::size_t>(c.sequences)] +
      (c.page_size > 0 ? fmt::format(" by {}", c.page_size) : std::string());
  return fmt::format("{} b={} sq={} sk={} h={}/{} d={}/{} {}{}, {}{}{}{}{}{}{}", to_string(c.dtype),
                     c.batch, c.seqlen_q, c.seqlen_k, c.heads, c.kv_heads, c.head_dim, c.head_dim_v,
                     c.huge_bias     ? "huge "
                     : c.shared_bias ? "shared "
                                     : "",
                     kFeatureNames[static_cast<std::size_t>(c.feature)],
                     kLayoutNames[static_cast<std::size_t>(c.layout)], sequences,
                     c.lse ? ", lse" : "", c.large ? ", large inputs" : "", formats, precision,
                     backward);
}

std::vector<GridCase> verify_grid(GridSize size, DType dtype, Pass pass) {
  if (pass == Pass::backward) {
    std::vector<GridCase> cases = backward_cases(verify_grid(size, dtype, Pass::forward), size);
    if (size != GridSize::emulated) return cases;
    // Twice as many kernels to compile: each feature once, in one of the 16-bit dtypes.
    cases.resize(kFeatures);
    std::size_t turn = dtype == DType::fp16 ? 0 : 1;
    if (dtype != DType::fp32)
      std::erase_if(cases, [&turn](const GridCase&) { return turn++ % 2 != 0; });
    return cases;
  }
  if (size == GridSize::emulated) return emulated_grid(dtype);
  const bool full = size == GridSize::full;
  const std::vector<int64_t> dims =
      full ? std::vector<int64_t>{16,  32,  40,  59,  64,  80,  96,  111, 128,
                                  160, 192, 224, 256, 288, 320, 384, 512, 576}
           : std::vector<int64_t>{1, 32, 59, 64, 128, 256, 576};
  std::vector<Lengths> lengths{{1, 147}, {113, 203}, {64, 64}, {1, 1}, {0, 5}, {5, 0}, {33, 7}};
  if (full) {
    const std::array<Lengths, 6> more{Lengths{128, 217}, {108, 256},   {256, 512},
                                      {512, 256},        {1023, 1024}, {2048, 2048}};
    lengths.insert(lengths.end(), more.begin(), more.end());
  }
  std::vector<GridCase> cases = sequence_cases(dtype);
  const std::vector<GridCase> split =
      full ? split_cases(dtype, {64, 128, 256}, {3, 20000}) : split_cases(dtype, {64}, {3, 5000});
  cases.insert(cases.end(), split.begin(), split.end());
  const std::vector<GridCase> huge = huge_bias_cases(dtype);
  cases.insert(cases.end(), huge.begin(), huge.end());
  std::size_t turn = 0;
  for (const int64_t dim : dims) {
    for (const Lengths& pair : lengths) {
      for (int feature = 0; feature < kFeatures; ++feature, ++turn) {
        // Long ones take seconds in the reference: none, causal, the biases, sinks and softcap
        // there.
        if (is_long(pair) && feature % 4 > 1) continue;
        cases.push_back(case_at(turn, dtype, dim, pair, static_cast<Feature>(feature)));
      }
    }
  }
  return cases;
}

GridCase random_case(std::mt19937_64& generator, DType dtype, Pass pass, bool few_kernels) {
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(generator);
  };
  const auto chance = [&](double share) { return std::bernoulli_distribution(share)(generator); };
  const auto pick = [&]<class T>(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  };
  // Blocks have whole rows.
  const auto add_formats = [&](GridCase& c, bool few) {
    const auto format = [&](int64_t dim) {
      return few ? DType::int8
             : dim % kBlockNumbers == 0 && chance(0.5)
                 ? pick({DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1})
                 : pick({DType::int8, DType::int8, DType::fp8_e4m3, DType::fp8_e5m2,
                         DType::fp8_e4m3fnuz, DType::fp8_e5m2fnuz});
    };
    if (!few && chance(0.4)) c.head_dim = c.head_dim_v = pick({int64_t{32}, int64_t{64}});
    c.k_format = format(c.head_dim);
    if (few || chance(0.8)) c.v_format = format(c.head_dim_v);
    c.token_scales = !c.equal_keys && chance(0.5);
  };
  GridCase c;
  c.dtype = dtype;
  c.pass = pass;
  // An emulated workgroup takes milliseconds whatever the rows in it, and the tolerance is
  // strictest where there are few.
  const bool one_head = few_kernels && chance(0.8);
  c.batch = one_head ? 1 : between(1, 2);
  const Heads heads = one_head ? Heads{1, 1} : pick({Heads{1, 1}, {2, 2}, {2, 1}, {3, 1}, {4, 2}});
  c.heads = heads.q;
  c.kv_heads = heads.kv;
  c.seqlen_q = chance(0.4) ? 1 : between(1, 12);
  c.seqlen_k = chance(0.03) ? 0 : between(1, 40);
  c.head_dim = few_kernels    ? pick({int64_t{1}, int64_t{3}, int64_t{64}})
               : chance(0.3)  ? between(1, 4)
               : chance(0.05) ? between(91, 576)
                              : between(1, 90);
  c.head_dim_v = few_kernels || chance(0.6) ? std::min(c.head_dim, kMaxHeadDimV) : between(1, 40);
  c.feature = few_kernels ? pick({Feature::none, Feature::causal, Feature::bias})
                          : static_cast<Feature>(between(0, kFeatures - 1));
  c.layout = static_cast<Layout>(between(0, kLayouts - 1));
  c.lse = pass == Pass::backward || chance(0.6);
  c.large = chance(0.2);
  if (chance(0.15)) c.q_size = pick({5.0F, 20.0F, 100.0F});
  c.equal_keys = chance(0.1);
  if (chance(few_kernels ? 0 : 0.15)) c.dropout = pick({0.1F, 0.5F, 0.9F, 0.99F, 0.99998F});
  if (chance(0.002)) {  // an accumulated sum's error grows with the keys
    c.batch = c.heads = c.kv_heads = 1;
    c.seqlen_q = between(1, 2);
    c.seqlen_k = between(2000, 4000);
    c.head_dim = c.head_dim_v = few_kernels ? 64 : between(1, 16);
    c.equal_keys = chance(0.7);
  }
  if (chance(few_kernels ? 0.03 : 0.08)) {
    // Keys that are split among workgroups or threads, with a window that begins anywhere in a
    // split: lse shows keys too many.
    c.seqlen_q = between(1, 3);
    c.seqlen_k = few_kernels || chance(0.8) ? between(600, 2600) : between(2600, 12000);
    c.head_dim = c.head_dim_v = few_kernels ? 64 : pick({int64_t{16}, int64_t{64}, int64_t{128}});
    if (chance(0.7)) c.feature = Feature::window;
    c.window_left = between(0, c.seqlen_k);
    c.window_right = chance(0.5) ? between(0, 30) : -1;
    c.lse = true;
    c.dropout = 0;
  }
  if (chance(few_kernels ? 0 : 0.1)) {
    c.sequences =
        pass == Pass::backward ? Sequences::packed : static_cast<Sequences>(between(1, 3));
    c.page_size = c.sequences != Sequences::paged ? 0 : chance(0.7) ? between(1, 16) : 64;
    c.batch = between(2, 4);
  }
  if (pass == Pass::forward && chance(few_kernels ? 0.05 : 0.1)) add_formats(c, few_kernels);
  if (pass == Pass::backward) {
    c.dlse = chance(0.3);
    c.dbias_summed = chance(0.5) ? static_cast<int>(between(1, 4)) : 0;
  }
  return c;
}

GridData make_grid_data(const GridCase& c, NormalPool& pool, int threads) {
  GridData data;
  AttentionTensors& t = data.tensors;
  t.q = operand(c, false, c.head_dim);
  t.k = operand(c, true, c.head_dim, c.k_format);
  t.v = operand(c, true, c.head_dim_v, c.v_format);
  t.out = operand(c, false, c.head_dim_v);
  allocate(pool, c, data, t.q, (c.large ? 5.0F : 1.0F) * c.q_size);
  allocate_stored(pool, c, data, t.k, t.k_scale, c.large ? 3.0F : 1.0F);
  allocate_stored(pool, c, data, t.v, t.v_scale, c.large ? 3.0F : 1.0F);
  allocate(pool, c, data, t.out, 1.0F);
  if (c.lse) {
    const bool packed = c.sequences == Sequences::packed;
    t.lse = Tensor::bhqk(nullptr, DType::fp32, packed ? 1 : c.batch, c.heads, t.q.shape[1], 1);
    data.memory.push_back(random_tensor(pool, t.lse));
  }
  if (c.equal_keys) repeat_first_key(t.k);
  add_score_tensors(c, pool, data);
  add_sequences(c, pool, data);
  AttentionOptions& o = data.options;
  o.deterministic = false;  // kernels with atomics, too
  if (has(c, Feature::causal)) o.causal = Causal::bottom_right;
  if (c.feature == Feature::top_left) o.causal = Causal::top_left;
  if (has(c, Feature::window)) o.window_left = c.window_left;
  if (c.feature == Feature::window) o.window_right = c.window_right;
  if (has(c, Feature::softcap)) o.softcap = 15.0F;
  o.dropout = c.dropout;
  o.precision = c.precision;
  t.dropout_seed = pool.generator()();
  t.dropout_offset = pool.generator()();
  if (c.pass == Pass::backward) add_gradients(c, pool, data, threads);
  return data;
}

Result<Problem> problem_of(const GridCase& c, const GridData& data) {
  return c.pass == Pass::backward ? make_backward_problem(data.tensors, data.options)
                                  : make_problem(data.tensors, data.options);
}

}  // namespace fulmen::tools
