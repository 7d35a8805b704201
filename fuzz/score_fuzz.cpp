// Any bytes as a score function and as a mask function are either refused with a sentence and a
// place, or have values, derivatives and proofs over blocks that agree with each pair.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "score/evaluate.h"
#include "score/functions.h"
#include "score/interval.h"

namespace {

using fulmen::DType;
using fulmen::Result;
using fulmen::ScoreFunctions;

float g_table[5][7];
int32_t g_numbers[16];

std::vector<ScoreFunctions::Tensor> tensors() {
  std::vector<ScoreFunctions::Tensor> list(2);
  list[0] = {.name = "t", .dims = 2, .shape = {5, 7}, .strides = {7, 1}, .has_gradient = true};
  list[1] = {.name = "n", .dims = 1, .dtype = DType::int32, .shape = {16}, .strides = {1}};
  return list;
}

void check_refusal(const fulmen::Status& status) {
  if (status.message().find("line ") == std::string::npos &&
      status.message().find("nodes") == std::string::npos)
    std::abort();
}

// Few nodes: a fuzzer's time is better spent on other texts.
constexpr std::size_t kMostNodes = 512;

void check_block(const fulmen::score::Graph& mask, const fulmen::score::Elements* elements,
                 const fulmen::score::Block& block) {
  using namespace fulmen::score;
  std::vector<Bounds> scratch(mask.nodes.size());
  Intervals intervals(mask, elements, scratch.data());
  const Verdict verdict = intervals.of(block);
  if (verdict == Verdict::some) return;
  std::vector<BasicValue<float>> values(mask.nodes.size());
  for (int32_t q = block.query_first; q <= block.query_last; ++q) {
    for (int32_t k = block.key_first; k <= block.key_last; ++k) {
      evaluate<float>(mask.nodes, elements, {0, block.batch, block.head, q, k}, values.data());
      const bool kept = values[static_cast<std::size_t>(mask.results[0])].integer != 0;
      if (kept != (verdict == Verdict::all)) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (int i = 0; i < 35; ++i) g_table[i / 7][i % 7] = 0.25F * static_cast<float>(i - 17);
  for (int i = 0; i < 16; ++i) g_numbers[i] = i * i - 40;
  const fulmen::score::Elements elements[] = {{g_table, DType::fp32, 2, {5, 7}, {7, 1}},
                                              {g_numbers, DType::int32, 1, {16}, {1}}};
  const Result<ScoreFunctions> score = fulmen::score::make_functions(text, "", tensors(), true);
  if (!score.ok()) {
    check_refusal(score.status());
  } else if (size > 0 && score->impl()->gradient.nodes.size() < kMostNodes) {
    const fulmen::score::Graph& graph = score->impl()->gradient;
    std::vector<fulmen::score::Value> values(graph.nodes.size());
    for (int32_t q = 0; q < 3; ++q)
      fulmen::score::evaluate<double>(graph.nodes, elements, {0.5 * q, 1, q, 7 * q, 5},
                                      values.data());
  }
  const Result<ScoreFunctions> mask = fulmen::score::make_functions("", text, tensors(), false);
  if (!mask.ok()) {
    check_refusal(mask.status());
  } else if (size > 0 && mask->impl()->mask.nodes.size() < kMostNodes) {
    check_block(mask->impl()->mask, elements, {0, 1, 0, 7, 0, 7});
    check_block(mask->impl()->mask, elements, {2, 3, 100, 103, 96, 103});
  }
  return 0;
}
