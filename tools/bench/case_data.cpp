#include "tools/bench/case_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <new>
#include <numeric>

#include "tools/files/npy.h"
#include "tools/tensors/device_tensors.h"
#include "tools/tensors/float_conversion.h"

namespace fulmen::tools {
namespace {

std::size_t dense_bytes(const Tensor& tensor) {
  return stored_elements(tensor) * static_cast<std::size_t>(size_of(tensor.dtype));
}

Memory checked_memory(std::size_t bytes) {
  Memory memory(bytes);
  if (memory.data() == nullptr) throw std::bad_alloc();
  return memory;
}

// Pages in random order, as a cache has them after a while.
void add_tables(const BenchCase& c, NormalPool& pool, CaseData& data) {
  AttentionTensors& t = data.tensors;
  for (Tensor* tensor : {&t.block_table, &t.seqlens_k}) {
    data.memory.push_back(checked_memory(dense_bytes(*tensor) + 1));
    tensor->data = data.memory.back().data();
  }
  auto* pages = static_cast<int*>(t.block_table.data);
  const std::size_t count = stored_elements(t.block_table);
  std::iota(pages, pages + count, 0);
  std::shuffle(pages, pages + count, pool.generator());
  std::fill_n(static_cast<int*>(t.seqlens_k.data), c.batch, static_cast<int>(c.seqlen_k));
}

// The tensors of a case, without memory.
AttentionTensors tensors_of(const BenchCase& c) {
  const auto view = [&](int64_t seqlen, int64_t heads) {
    return c.suite == "decode" ? Tensor::bhsd(nullptr, c.dtype, c.batch, seqlen, heads, c.head_dim)
                               : Tensor::bshd(nullptr, c.dtype, c.batch, seqlen, heads, c.head_dim);
  };
  AttentionTensors t;
  t.q = t.out = view(c.seqlen_q, c.heads);
  t.k = t.v = view(c.seqlen_k, c.kv_heads);
  if (c.page_size > 0) {
    const int64_t pages = (c.seqlen_k + c.page_size - 1) / c.page_size;  // a sequence
    t.k = t.v =
        Tensor::bshd(nullptr, c.dtype, c.batch * pages, c.page_size, c.kv_heads, c.head_dim);
    t.block_table = {nullptr, DType::int32, {1, 1, c.batch, pages}, {0, 0, pages, 1}};
    t.seqlens_k = {nullptr, DType::int32, {1, 1, 1, c.batch}, {0, 0, 0, 1}};
  }
  if (c.mask == CaseMask::triangle)
    t.keep_mask = Tensor::bhqk(nullptr, DType::boolean, 1, 1, c.seqlen_q, c.seqlen_k);
  if (c.mask == CaseMask::padding)
    t.keep_mask = Tensor::bhqk(nullptr, DType::boolean, c.batch, 1, 1, c.seqlen_k);
  if (c.bias)
    t.bias =
        Tensor::bhqk(nullptr, c.dtype, c.training ? 1 : c.batch, c.heads, c.seqlen_q, c.seqlen_k);
  if (c.training) {
    t.dout = t.dq = t.q;
    t.dk = t.dv = t.k;
    t.dbias = t.bias;
    t.lse = Tensor::bhqk(nullptr, DType::fp32, c.batch, c.heads, c.seqlen_q, 1);
  }
  return t;
}

// The bytes of a case's bool mask.
void add_keep_mask(const BenchCase& c, CaseData& data) {
  Tensor& mask = data.tensors.keep_mask;
  data.memory.push_back(checked_memory(dense_bytes(mask) + 1));
  mask.data = data.memory.back().data();
  auto* keep = static_cast<uint8_t*>(mask.data);
  const int64_t rows = c.mask == CaseMask::triangle ? c.seqlen_q : c.batch;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t kept = c.mask == CaseMask::triangle ? row + 1 + c.seqlen_k - c.seqlen_q
                                                      : c.seqlen_k - c.seqlen_k * (row % 4 + 1) / 8;
    for (int64_t j = 0; j < c.seqlen_k; ++j) keep[row * c.seqlen_k + j] = j < kept ? 1 : 0;
  }
}

void add_masks(const BenchCase& c, AttentionOptions& options) {
  if (c.causal) options.causal = Causal::bottom_right;
}

Status check_size(const AttentionTensors& t, std::size_t max_bytes) {
  std::size_t bytes = 0;
  for (const TensorField& field : kTensorTable) bytes += dense_bytes(t->*field.tensor);
  if (bytes <= max_bytes) return {};
  return {StatusCode::out_of_memory,
          fmt::format("its tensors are {:.1f} GB, more than --max-gb {:.1f}",
                      static_cast<double>(bytes) / 1e9, static_cast<double>(max_bytes) / 1e9)};
}

// Returns true if a tensor of the call has no data yet.
bool is_missing(const Tensor& tensor) {
  return tensor.data == nullptr && tensor.shape != std::array<int64_t, 4>{};
}

Status random_case(const BenchCase& c, NormalPool& pool, std::size_t max_bytes, CaseData& data) {
  AttentionTensors& t = data.tensors;
  t = tensors_of(c);
  std::vector<Tensor*> inputs{&t.q, &t.k, &t.v};
  if (c.bias) inputs.push_back(&t.bias);
  if (c.training) inputs.push_back(&t.dout);
  if (Status status = check_size(t, max_bytes); !status.ok()) return status;
  for (Tensor* tensor : inputs) data.memory.push_back(random_tensor(pool, *tensor));
  if (c.page_size > 0) add_tables(c, pool, data);
  if (c.mask != CaseMask::none) add_keep_mask(c, data);
  return {};
}

constexpr double kKeptShare = 0.875;  // the ones in a bool mask that is given by its shape
constexpr uint64_t kDropoutSeed = 1;

// Fills in what no file of --problem gives: random numbers, and ALiBi's slopes as in its paper.
Status given_case(const GivenProblem& given, NormalPool& pool, std::size_t max_bytes,
                  CaseData& data) {
  Result<GivenCall> made = make_call(given);
  if (!made.ok()) return made.status();
  data.files = std::move(made->files);
  data.options = made->options;
  AttentionTensors& t = data.tensors = made->tensors;
  t.dropout_seed = kDropoutSeed;
  const Result<Problem> sizes = make_problem(t, data.options);  // sizes fit into memory's addresses
  if (!sizes.ok()) return sizes.status();
  if (Status status = check_size(t, max_bytes); !status.ok())
    return {StatusCode::invalid_argument, status.message()};
  for (const auto& [codes, scale] : {std::pair{&t.k, &t.k_scale}, {&t.v, &t.v_scale}}) {
    if (made->values_in_keys && codes == &t.v) {
      if (is_missing(t.k)) data.memory.push_back(random_tensor(pool, t.k));
      t.v.data = t.k.data;
      t.v_scale = t.k_scale;
    }
    if (!is_quantized(codes->dtype) || !is_missing(*codes)) continue;
    for (Memory& memory : random_codes(pool, *codes, *scale))
      data.memory.push_back(std::move(memory));
  }
  for (Tensor* tensor :
       std::initializer_list<Tensor*>{&t.q, &t.k, &t.v, &t.bias, &t.sinks, &t.dout, &t.dlse}) {
    if (is_missing(*tensor)) data.memory.push_back(random_tensor(pool, *tensor));
  }
  if (is_missing(t.keep_mask)) {
    data.memory.push_back(checked_memory(dense_bytes(t.keep_mask) + 1));
    t.keep_mask.data = data.memory.back().data();
    pool.fill_mask(t.keep_mask.data, stored_elements(t.keep_mask), kKeptShare);
  }
  if (is_missing(t.alibi_slopes)) {
    data.memory.push_back(checked_memory(dense_bytes(t.alibi_slopes) + 1));
    auto* slopes = static_cast<float*>(t.alibi_slopes.data = data.memory.back().data());
    const int64_t heads = t.alibi_slopes.shape[3];
    for (int64_t h = 0; h < heads; ++h)
      slopes[h] = std::exp2(-8.0F * static_cast<float>(h + 1) / static_cast<float>(heads));
  }
  return {};
}

Status real_case(const BenchCase& c, CaseData& data) {
  AttentionTensors& t = data.tensors;
  Tensor* const tensors[] = {&t.q, &t.k, &t.v, &t.keep_mask};
  const auto paths = real_case_files(c.folder);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    Result<NpyArray> read = read_npy(paths[i], true);
    if (!read.ok()) return read.status();
    NpyArray& array = read.value();
    const bool mask = array.dtype == DType::boolean;
    if (array.shape.size() != (mask ? 2U : 4U) || (!mask && array.dtype != DType::fp32)) {
      return {
          StatusCode::invalid_argument,
          fmt::format("{}: neither an fp32 [batch, seqlen, head, dim] nor a bool [batch, seqlen]",
                      array.path)};
    }
    const auto& s = array.shape;
    Memory memory = std::move(array.data);
    if (mask) {
      *tensors[i] = Tensor::bhqk(memory.data(), DType::boolean, s[0], 1, 1, s[1]);
    } else {
      if (c.dtype != DType::fp32) {
        Memory converted =
            checked_memory(array.element_count() * static_cast<std::size_t>(size_of(c.dtype)));
        convert_from_fp32(static_cast<const float*>(memory.data()), c.dtype, converted.data(),
                          array.element_count());
        memory = std::move(converted);
      }
      *tensors[i] = Tensor::bshd(memory.data(), c.dtype, s[0], s[1], s[2], s[3]);
    }
    data.memory.push_back(std::move(memory));
  }
  t.out = Tensor::bshd(nullptr, c.dtype, t.q.shape[0], t.q.shape[1], t.q.shape[2], t.v.shape[3]);
  return {};
}

}  // namespace

std::array<std::string, 4> real_case_files(const std::string& folder) {
  return {folder + "/q.npy", folder + "/k.npy", folder + "/v.npy", folder + "/keep.npy"};
}

Result<Problem> case_problem(const BenchCase& bench_case, Pass pass, AttentionOptions options) {
  add_masks(bench_case, options);
  const AttentionTensors tensors = tensors_of(bench_case);
  return pass == Pass::forward ? make_problem(tensors, options)
                               : make_backward_problem(tensors, options);
}

Result<std::unique_ptr<CaseData>> make_case_data(const BenchCase& bench_case, NormalPool& pool,
                                                 const AttentionOptions& options,
                                                 std::size_t max_bytes) {
  auto data = std::make_unique<CaseData>();
  data->options = options;
  add_masks(bench_case, data->options);
  const Status status =
      bench_case.given != nullptr  ? given_case(*bench_case.given, pool, max_bytes, *data)
      : !bench_case.folder.empty() ? real_case(bench_case, *data)
                                   : random_case(bench_case, pool, max_bytes, *data);
  if (!status.ok()) return status;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (Tensor AttentionTensors::* const one : outputs_of(pass)) {
      Tensor& output = data->tensors.*one;
      if (output.shape == std::array<int64_t, 4>{}) continue;
      data->memory.push_back(checked_memory(dense_bytes(output) + 1));
      output.data = data->memory.back().data();
      // NaN everywhere: an element that is not written cannot pass for a result.
      std::memset(output.data, 0xFF, dense_bytes(output));
    }
  }
  Result<Problem> problem = make_problem(data->tensors, data->options);
  if (!problem.ok()) return problem.status();
  data->problem = std::move(problem).value();
  if (bench_case.training) {
    Result<Problem> backward = make_backward_problem(data->tensors, data->options);
    if (!backward.ok()) return backward.status();
    data->backward = std::move(backward).value();
  }
  return data;
}

}  // namespace fulmen::tools
