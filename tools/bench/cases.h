// What `fulmen bench` measures: real problems of chess engines, language models and text encoders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/tensor.h"

namespace fulmen::tools {

struct GivenProblem;

// A bool mask, the same for all heads. triangle: what a causal mask says,
// [1, 1, seqlen_q, seqlen_k]. padding: keys at the end that nobody attends, more or fewer of each
// sequence, [batch, 1, 1, seqlen_k].
enum class CaseMask { none, triangle, padding };
inline const char* to_string(CaseMask mask) {
  return mask == CaseMask::triangle ? "triangle" : mask == CaseMask::padding ? "padding" : "none";
}

struct BenchCase {
  std::string suite;  // "real", "prefill", "boards", "decode", "paged", "training", "problem"
  std::string name;   // "16x64 S1024 causal"
  DType dtype = DType::fp32;
  int64_t batch = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 0;
  bool causal = false;
  // One bias a board and head; in training one a head, whose gradient is summed over the batch.
  bool bias = false;
  CaseMask mask = CaseMask::none;
  bool training = false;    // the forward pass, and the gradients of q, k, v and the bias
  int64_t page_size = 0;    // paged keys and values, pages in any order; 0: not paged
  std::string folder = {};  // .npy files of real input
  // --problem's; the fields above are read off its tensors.
  std::shared_ptr<const GivenProblem> given = {};
  bool few_queries = false;  // --problem: what is_decode() says
};

// Returns true for one or a few queries a sequence over a cache, which memory limits.
inline bool is_decode(const BenchCase& c) {
  return c.suite == "decode" || c.suite == "paged" || c.few_queries;
}

// The size of cases that a device can do in the time that a case gets. emulated: enough to run
// every kind of kernel.
enum class CaseSize { cpu, gpu, emulated };

// The cases of a suite ("all": every one) for a dtype. brief leaves one case of a suite's kind.
std::vector<BenchCase> bench_cases(const std::string& suite, DType dtype, CaseSize size,
                                   bool brief);

}  // namespace fulmen::tools
