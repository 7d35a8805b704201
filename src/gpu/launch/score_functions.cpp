#include "gpu/launch/score_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdlib>

#include "gpu/launch/tensor_gradients.h"
#include "runtime/block_lists.h"
#include "score/functions.h"

namespace fulmen::gpu {
namespace {

using score::Graph;
using score::Op;
using score::PrintedTensor;

// What the tensors' elements are called in kernels/core/score_operations.h.
const char* element_of(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return "Half";
    case DType::bf16:
      return "Bfloat16";
    case DType::int64:
      return "Int64";
    case DType::int32:
      return "int";
    case DType::int8:
      return "op::Int8";
    case DType::uint8:
      return "unsigned char";
    case DType::boolean:
      return "op::Boolean";
    default:
      return "float";
  }
}

// Which of its tensors the functions read.
std::bitset<score::kMaxTensors> tensors_read(const ScoreFunctions::Impl& functions) {
  std::bitset<score::kMaxTensors> read;
  for (const Graph* graph : {&functions.score, &functions.mask}) {
    for (const score::Node& node : graph->nodes) {
      if (node.op == Op::load) read.set(node.tensor);
    }
  }
  return read;
}

// The value of score_mod and its derivative by the score.
Graph derivative_of(const ScoreFunctions::Impl& functions) {
  Graph graph = functions.gradient;
  graph.results = {graph.results.front(), graph.results.back()};
  return score::live_part(graph);
}

// Where kernels find the functions' tensors. The same for all kernels of a problem.
struct Places {
  std::vector<PrintedTensor> printed;  // by the tensor's place in the problem
  std::vector<std::size_t> slots;      // which tensor each address is of
  std::vector<int64_t> numbers;
};
Places places_of(const Problem& p) {
  Places places;
  const ScoreFunctions::Impl* functions = p.functions.impl();
  if (functions == nullptr) return places;
  // What neither is 0 or 1 nor has room is a constant, too: another one is another kernel.
  const auto number = [&](int64_t value) -> std::string {
    if (value == 0 || value == 1 ||
        places.numbers.size() == std::size_t{kernels::kMostFunctionNumbers})
      return fmt::format("{}", value);
    places.numbers.push_back(value);
    return fmt::format("tensors.number[{}]", places.numbers.size() - 1);
  };
  const auto read = tensors_read(*functions);
  for (std::size_t t = 0; t < functions->tensors.size(); ++t) {
    PrintedTensor& printed = places.printed.emplace_back();
    if (!read[t]) continue;
    const ScoreFunctions::Tensor& tensor = functions->tensors[t];
    printed.data = fmt::format("tensors.data[{}]", places.slots.size());
    places.slots.push_back(t);
    printed.element = element_of(tensor.dtype);
    printed.dims = tensor.dims;
    constexpr int64_t kMostExtent = int64_t{1} << 31;
    printed.empty = elements_of(tensor) == 0;
    int64_t farthest = 0;
    for (int d = 0; d < tensor.dims; ++d) {
      // No index is larger.
      printed.extent[d] = number(std::min(tensor.shape[d], kMostExtent));
      printed.stride[d] = number(tensor.strides[d]);
      const int64_t steps = std::max<int64_t>(std::min(tensor.shape[d], kMostExtent) - 1, 0),
                    stride = std::abs(tensor.strides[d]);
      farthest = stride != 0 && steps > kMostExtent / stride
                     ? kMostExtent
                     : std::min(kMostExtent, farthest + steps * stride);
    }
    printed.near = farthest < kMostExtent;
    printed.ahead = std::all_of(tensor.strides.begin(), tensor.strides.begin() + tensor.dims,
                                [](int64_t stride) { return stride >= 0; });
  }
  return places;
}

bool mask_reads(const Problem& p, Op op) {
  return has_mask_mod(p) &&
         std::any_of(p.functions.impl()->mask.nodes.begin(), p.functions.impl()->mask.nodes.end(),
                     [&](const score::Node& node) { return node.op == op; });
}
bool lists_differ(const Problem& p, int dim) {
  const std::array lists{&p.kv_num_blocks, &p.kv_indices, &p.full_kv_num_blocks,
                         &p.full_kv_indices};
  return std::any_of(lists.begin(), lists.end(), [&](const TensorSpec* spec) {
    return spec->present && spec->strides[dim] != 0;
  });
}

kernels::BlockLists lists_of(const BlockList& list) {
  return {list.counts,     list.indices,       list.counts_batch, list.counts_head,
          list.counts_row, list.indices_batch, list.indices_head, list.indices_row};
}

std::string define(const char* name, const Graph& graph, const Places& places) {
  return fmt::format("#define {} {}\n", name, score::print(graph, places.printed));
}

}  // namespace

bool has_score_mod(const Problem& p) {
  return p.functions.impl() != nullptr && p.functions.impl()->has_score();
}
bool has_mask_mod(const Problem& p) {
  return p.functions.impl() != nullptr && p.functions.impl()->has_mask();
}
bool has_mask_parts(const Problem& p) { return has_mask_mod(p) || p.has_block_mask(); }
bool lists_differ_by_batch(const Problem& p) { return lists_differ(p, 0); }
bool lists_differ_by_head(const Problem& p) { return lists_differ(p, 1); }
bool masks_differ_by_batch(const Problem& p) {
  return p.variable_lengths() || p.keep_mask.strides[0] != 0 || mask_reads(p, Op::batch) ||
         lists_differ(p, 0);
}
bool masks_differ_by_query(const Problem& p) {
  return p.keep_mask.strides[2] != 0 || has_mask_parts(p);
}
bool masks_differ_by_head(const Problem& p) {
  return p.keep_mask.strides[1] != 0 || mask_reads(p, Op::head) || lists_differ(p, 1);
}

Support takes_functions(const Problem& p, int most_operations) {
  const ScoreFunctions::Impl* functions = p.functions.impl();
  // Bits of each pair of all planes: launch/mask_bits.h.
  constexpr double kMostBytes = 8.0 * (1 << 30);
  const double planes = (masks_differ_by_batch(p) ? static_cast<double>(p.batch) : 1) *
                        (masks_differ_by_head(p) ? static_cast<double>(p.num_heads) : 1);
  const double bytes = planes * static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_k) /
                       (p.pass == Pass::backward ? 4 : 8);
  if (has_mask_parts(p) && bytes > kMostBytes) {
    return Support::no(
        fmt::format("its bits of mask_mod and the block mask would take {:.0f} MiB of workspace, "
                    "up to {:.0f} are accepted",
                    bytes / (1 << 20), kMostBytes / (1 << 20)));
  }
  if (functions == nullptr) return {};
  if (Support support = takes_tensor_gradients(p); !support.yes) return support;
  if (const std::size_t tensors = places_of(p).slots.size();
      tensors > std::size_t{kernels::kMostFunctionTensors}) {
    return Support::no(fmt::format("score_mod and mask_mod read {} tensors: a kernel takes {}",
                                   tensors, kernels::kMostFunctionTensors));
  }
  if (!functions->has_score()) return {};
  const std::size_t operations = p.pass == Pass::backward ? derivative_of(*functions).nodes.size()
                                                          : functions->score.nodes.size();
  if (operations <= static_cast<std::size_t>(most_operations)) return {};
  return Support::no(fmt::format("score_mod{} has {} operations: its tiles take {}",
                                 p.pass == Pass::backward ? " with its derivative" : "", operations,
                                 most_operations));
}

std::string score_mod_source(const Problem& p) {
  if (!has_score_mod(p)) return {};
  const Places places = places_of(p);
  std::string text = define("FULMEN_SCORE_MOD", p.functions.impl()->score, places);
  if (p.pass == Pass::backward)
    text += define("FULMEN_SCORE_GRADIENT", derivative_of(*p.functions.impl()), places);
  return text;
}

std::string mask_mod_source(const Problem& p) {
  return has_mask_mod(p) ? define("FULMEN_MASK_MOD", p.functions.impl()->mask, places_of(p)) : "";
}

std::vector<PrintedTensor> printed_tensors(const Problem& p) { return places_of(p).printed; }

void set_function_numbers(const Problem& p, kernels::FunctionTensors& to) {
  if (!p.functions.any()) return;
  const Places places = places_of(p);
  std::copy(places.numbers.begin(), places.numbers.end(), to.number);
}

void set_function_pointers(const Problem& p, const AttentionTensors& t,
                           kernels::FunctionTensors& to) {
  const ScoreFunctions::Impl* functions = p.functions.impl();
  if (functions == nullptr) return;
  const auto read = tensors_read(*functions);
  int slot = 0;
  for (std::size_t i = 0; i < functions->tensors.size(); ++i) {
    if (read[i]) to.data[slot++] = t.function_tensors[i].tensor.data;
  }
}

void set_block_lists(const Problem& p, const AttentionTensors& t, kernels::BlockMask& to) {
  if (!p.has_block_mask()) return;
  to.partial = lists_of(partial_blocks(p, t));
  to.full = lists_of(full_blocks(p, t));
}

}  // namespace fulmen::gpu
