#include "tools/options/vector_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "fulmen/printable.h"
#include "tools/options/number_checks.h"

namespace fulmen::tools {
namespace {

Status load(const VectorFile& file, const std::string& path, NpyArray& array, Tensor& tensor) {
  Result<NpyArray> read = read_npy(path, true);
  if (!read.ok()) return read.status();
  array = std::move(read).value();
  const auto& s = array.shape;
  using T = AttentionTensors;
  const bool rows_scale = file.tensor == &T::k_scale || file.tensor == &T::v_scale;
  if (array.dtype == file.dtype && rows_scale && s.size() == 4) {
    tensor = Tensor::bshd(array.data.data(), file.dtype, s[0], s[1], s[2], s[3]);
    return {};
  }
  if (array.dtype != file.dtype ||
      !((s.size() == 1 && file.one_dim) || (s.size() == 2 && file.two_dims))) {
    return {StatusCode::invalid_argument,
            fmt::format("{} ({}): {} {} is not {} {}", file.option, printable(path),
                        to_string(array.dtype), shape_text(s), to_string(file.dtype), file.dims)};
  }
  const int64_t rows = s.size() == 2 ? s[0] : 1, columns = s.back();
  tensor = {array.data.data(), file.dtype, {1, 1, 1, columns}, {0, 0, 0, 1}};
  // Pages are [1, 1, batch, max_pages], numbers [batch, 1, 1, heads]
  const std::size_t dim = file.dtype == DType::int32 ? 2 : 0;
  tensor.shape[dim] = rows;
  tensor.strides[dim] = rows == 1 ? 0 : columns;
  if (rows_scale || file.tensor == &T::q_scale) {
    // [batch, 1, kv_heads, 1]
    std::swap(tensor.shape[2], tensor.shape[3]);
    std::swap(tensor.strides[2], tensor.strides[3]);
    tensor.strides[3] = 1;
  }
  return {};
}

// Returns the most rows of a sequence, for calls whose option does not say it.
int64_t longest(int64_t given, const Tensor& cumulative) {
  if (given >= 0 || cumulative.data == nullptr) return given;
  int64_t most = 0;
  const auto* cu = static_cast<const int*>(cumulative.data);
  for (int64_t n = 1; n < cumulative.shape[3]; ++n)
    most = std::max(most, static_cast<int64_t>(cu[n]) - cu[n - 1]);
  return most;
}

}  // namespace

bool VectorArguments::given(InputTensor AttentionTensors::* tensor) const {
  for (std::size_t i = 0; i < kVectorFiles.size(); ++i) {
    if (kVectorFiles[i].tensor == tensor) return !paths[i].empty();
  }
  return false;
}

void add_vector_options(CLI::App& app, VectorArguments& a) {
  for (std::size_t i = 0; i < kVectorFiles.size(); ++i)
    app.add_option(kVectorFiles[i].option, a.paths[i], kVectorFiles[i].help);
  app.add_option("--max-seqlen-q", a.max_seqlen_q,
                 "most queries of a sequence; by --cu-seqlens-q when not given")
      ->transform(int64_from(0));
  app.add_option("--max-seqlen-k", a.max_seqlen_k,
                 "most keys of a sequence; by --cu-seqlens-k, or as the shapes say, when not given")
      ->transform(int64_from(0));
}

Status load_vectors(const VectorArguments& a, VectorArrays& arrays, AttentionTensors& t,
                    AttentionOptions& options) {
  for (std::size_t i = 0; i < kVectorFiles.size(); ++i) {
    const VectorFile& file = kVectorFiles[i];
    if (a.paths[i].empty()) continue;
    if (Status status = load(file, a.paths[i], arrays[i], t.*file.tensor); !status.ok())
      return status;
  }
  options.max_seqlen_q = longest(a.max_seqlen_q, t.cu_seqlens_q);
  options.max_seqlen_k = longest(a.max_seqlen_k, t.cu_seqlens_k);
  return {};
}

}  // namespace fulmen::tools
