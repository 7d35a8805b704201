#include "gpu/launch/tensor_gradients.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "gpu/launch/backward.h"
#include "gpu/launch/square.h"
#include "score/bytecode.h"
#include "score/functions.h"
#include "score/source.h"

namespace fulmen::gpu {
namespace {

constexpr int kHelperLanes = 128;
// 12 words and two flags of half a word: kernels/backward/parts/exact_sum.h.
constexpr int64_t kSumBytes = 8 * (algorithm::kTensorSumWords + 1);
// Places of score_mod that read such tensors, and operations with all derivatives: loops over pairs
// are not unrolled here.
constexpr std::size_t kMostLoads = 16, kMostOperations = 4 * kMostTileOperations;

// score_mod's value; then, of each load, its derivative and its indices.
score::Graph graph_of(const ScoreFunctions::Impl& functions) {
  score::Graph graph = functions.gradient;
  graph.results.erase(graph.results.begin());  // the derivative by the score
  std::rotate(graph.results.begin(), graph.results.end() - 1, graph.results.end());
  return score::live_part(graph);
}
// The indices of a load, among the graph's results.
std::span<const int32_t> indices_of(const ScoreFunctions::Impl& functions,
                                    const score::Graph& graph, const LoadResult& load) {
  const auto dims =
      static_cast<std::size_t>(functions.tensors[static_cast<std::size_t>(load.tensor)].dims);
  return std::span(graph.results).subspan(static_cast<std::size_t>(load.index), dims);
}

// What a place varies with: the number of its LoadRank in kernels/backward/parts/tensor_loads.h.
int load_rank(std::span<const int32_t> indices, const std::vector<score::Dependence>& dependences) {
  score::Dependence all;
  for (const int32_t index : indices) {
    const score::Dependence& one = dependences[static_cast<std::size_t>(index)];
    all = {all.query || one.query, all.key || one.key, all.score || one.score};
  }
  switch (score::rank_of(all)) {
    case score::Rank::tile:
      return 0;
    case score::Rank::query:
      return 1;
    case score::Rank::key:
      return 2;
    case score::Rank::distance:
    case score::Rank::pair:
      break;
  }
  return 3;
}

int64_t gradients_asked_for(const Problem& p) {
  const auto tensors = p.functions.tensors();
  return std::count_if(tensors.begin(), tensors.end(),
                       [](const ScoreFunctions::Tensor& tensor) { return tensor.has_gradient; });
}

// Workgroups of the kernel that goes over all pairs.
int64_t workgroups(const Problem& p) {
  const int64_t keys = int64_t{algorithm::kTensorRunTiles} * square_columns();
  return tiles_of(p.seqlen_k, keys) * tiles_of(p.seqlen_q, square_rows(p)) * p.batch * p.num_heads;
}

}  // namespace

bool has_tensor_gradients(const Problem& p) { return gradients_asked_for(p) > 0; }

bool loads_have_gradients(const Problem& p) {
  return has_score_mod(p) && !p.functions.impl()->loads.empty();
}

int64_t tensor_gradient_elements(const Problem& p) {
  int64_t count = 0;
  for (const ScoreFunctions::Tensor& tensor : p.functions.tensors()) {
    if (tensor.has_gradient) count += elements_of(tensor);
  }
  return count;
}

Support takes_tensor_gradients(const Problem& p) {
  const int64_t count = gradients_asked_for(p);
  if (count == 0) return {};
  if (count > algorithm::kMostTensorGradients) {
    return Support::no(fmt::format("gradients of {} functions' tensors are asked for: it gives {}",
                                   count, algorithm::kMostTensorGradients));
  }
  constexpr double kMostBytes = 8.0 * (1 << 30);
  const double bytes =
      static_cast<double>(tensor_gradient_elements(p)) * static_cast<double>(kSumBytes);
  if (bytes > kMostBytes) {
    return Support::no(
        fmt::format("sums of gradients of functions' tensors, {} bytes an element, "
                    "would take {:.0f} MiB of workspace, up to {:.0f} are accepted",
                    kSumBytes, bytes / (1 << 20), kMostBytes / (1 << 20)));
  }
  if (!loads_have_gradients(p)) return {};
  const ScoreFunctions::Impl& functions = *p.functions.impl();
  if (functions.loads.size() > kMostLoads) {
    return Support::no(
        fmt::format("score_mod reads tensors with gradients at {} places: a kernel "
                    "takes {}",
                    functions.loads.size(), kMostLoads));
  }
  if (const std::size_t operations = graph_of(functions).nodes.size();
      operations > kMostOperations) {
    return Support::no(
        fmt::format("score_mod with derivatives by its tensors has {} operations: "
                    "a kernel takes {}",
                    operations, kMostOperations));
  }
  // Floats that a word of an exact sum has room for.
  constexpr double kMostPairs = 549755813888.0;  // 2^39
  // Sequences that are packed have their rows together, of which the longest has seqlen_q.
  const double rows = p.packed_q() ? static_cast<double>(p.total_q)
                                   : static_cast<double>(p.batch) * static_cast<double>(p.seqlen_q);
  const double pairs = rows * static_cast<double>(p.num_heads) * static_cast<double>(p.seqlen_k) *
                       static_cast<double>(functions.loads.size());
  if (pairs >= kMostPairs) {
    return Support::no(
        fmt::format("an element of a functions' tensor may be read {:.3g} times: exact sums of its "
                    "gradient have room for {:.3g}",
                    pairs, kMostPairs));
  }
  return grid_fits(workgroups(p));
}

std::string tensor_loads_source(const Problem& p) {
  const ScoreFunctions::Impl& functions = *p.functions.impl();
  const std::vector<score::PrintedTensor> printed = printed_tensors(p);
  const score::Graph graph = graph_of(functions);
  const std::vector<score::Dependence> dependences = score::dependences(graph.nodes);
  std::vector<int> tensors, ranks;
  std::vector<std::string> by, places;
  for (const LoadResult& load : functions.loads) {
    const auto indices = indices_of(functions, graph, load);
    int nth = 0;  // among the tensors with gradients
    for (int t = 0; t < load.tensor; ++t)
      nth += functions.tensors[static_cast<std::size_t>(t)].has_gradient ? 1 : 0;
    tensors.push_back(nth);
    ranks.push_back(load_rank(indices, dependences));
    by.push_back(fmt::format("n{}", graph.results[static_cast<std::size_t>(load.by)]));
    places.push_back(score::place(printed[static_cast<std::size_t>(load.tensor)], indices));
  }
  return fmt::format(
      "#define FULMEN_TENSOR_LOADS {}\n#define FULMEN_LOADED_TENSORS {}\n"
      "#define FULMEN_LOAD_RANKS {}\n#define FULMEN_TENSOR_GRADIENTS {} "
      "return {{n{}, {{{}}}, {{{}}}}};\n",
      functions.loads.size(), fmt::join(tensors, ", "), fmt::join(ranks, ", "),
      score::statements(graph, printed), graph.results.front(), fmt::join(by, ", "),
      fmt::join(places, ", "));
}

std::string tensor_gradients_note(const Problem& p) {
  const int64_t elements = tensor_gradient_elements(p);
  return fmt::format("gradients of functions' tensors: {} elements, {} bytes of workspace{}",
                     elements, elements * kSumBytes,
                     loads_have_gradients(p) && elements > 0
                         ? "; q.k and dout.v once more, without matrix instructions"
                         : "; score_mod reads none of them");
}

void set_tensor_gradients(const Problem& p, const AttentionTensors& t, float* sums,
                          kernels::TensorGradients& to) {
  to = {};
  if (!has_tensor_gradients(p)) return;
  to.sums = reinterpret_cast<kernels::Int64*>(sums);
  const auto tensors = p.functions.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ScoreFunctions::Tensor& tensor = tensors[i];
    if (!tensor.has_gradient) continue;
    kernels::TensorGradient& one = to.of[to.count++];
    one.data = t.function_tensors[i].gradient.data;
    one.first = to.elements;
    one.dtype = static_cast<int>(tensor.gradient_dtype);
    std::fill_n(one.extent, 4, 1);
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    for (int d = 0; d < tensor.dims; ++d) {
      // Nothing is read of a tensor without elements, whose extents may be larger.
      one.extent[d] = static_cast<int>(std::min(tensor.shape[d], kMost));
      one.stride[d] = tensor.gradient_strides[d];
    }
    to.elements += static_cast<int>(elements_of(tensor));
  }
}

void BackwardPlan::add_tensor_gradients(const Specialisation& products, const Chip& chip) {
  if (!has_tensor_gradients(p_)) return;
  const int64_t elements = tensor_gradient_elements(p_);
  plan_.tensor_sum_floats = round_up(kSumBytes / 4 * elements, 16);
  const auto add = [&](std::string_view entry, int64_t lanes) {
    Specialisation s;
    s.entry = entry;
    s.workgroup = kHelperLanes;
    s.backward = true;
    plan_.launches.push_back({s, tiles_of(lanes, kHelperLanes)});
  };
  add("backward/parts/clear_tensor_sums.h", kSumBytes / 8 * elements);
  if (loads_have_gradients(p_) && elements > 0) {
    Specialisation s;
    s.entry = "backward/tensor_gradients.h";
    constexpr int kNumbers = 2;  // of each pair: kernels/backward/tensor_gradients.h
    specialise_square(p_, chip, true, 0, s, kNumbers);
    s.plain_scale = false;
    s.whole_rows = s.whole_rows != 0 && products.whole_rows != 0 ? 1 : 0;
    s.outputs = kGivesTensors;
    s.functions += tensor_loads_source(p_);
    plan_.launches.push_back({s, workgroups(p_)});
  }
  add("backward/parts/tensor_sums.h", elements);
}

}  // namespace fulmen::gpu
