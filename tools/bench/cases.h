// What `fulmen bench` measures: real problems of chess engines, language models and text encoders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/tensor.h"

namespace fulmen::tools {

struct GivenProblem;

// A bool mask, the same for all heads. triangle: what a causal mask says, [1, 1, seqlen_q, seqlen_k]. padding: keys at the end that
// nobody attends, more or fewer of each sequence, [batch, 1, 1, seqlen_k].
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
  bool bias = false;  // one of each board and head; training: of each head, its gradient summed over the batch
  CaseMask mask = CaseMask::none;
  bool training = false;    // the forward pass, and the gradients of q, k, v and the bias
  int64_t page_size = 0;    // of paged keys and values, their pages in any order; 0: rows one after the other
  std::string folder = {};  // of .npy files, for real input
  std::shared_ptr<const GivenProblem> given = {};  // of --problem; what is above is then read off its tensors
  bool few_queries = false;                        // of --problem: as is_decode()
};

// A query or a few a sequence over a cache: memory is what limits it.
inline bool is_decode(const BenchCase& c) { return c.suite == "decode" || c.suite == "paged" || c.few_queries; }

// What a device can do in the time that a case gets. emulated: enough to run every kind of kernel.
enum class CaseSize { cpu, gpu, emulated };

// The cases of a suite ("all": every one) for a dtype. brief leaves one case of a suite's kind.
std::vector<BenchCase> bench_cases(const std::string& suite, DType dtype, CaseSize size, bool brief);

}  // namespace fulmen::tools
