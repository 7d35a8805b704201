// What `fulmen bench` measures: real problems of chess engines, language models and text encoders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/tensor.h"

namespace fulmen::tools {

struct BenchCase {
  std::string suite;  // "real", "prefill", "boards", "decode", "paged", "training"
  std::string name;   // "16x64 S1024 causal"
  DType dtype = DType::fp32;
  int64_t batch = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 0;
  bool causal = false;
  bool bias = false;        // one of each board and head; training: of each head, its gradient summed over the batch
  bool training = false;    // the forward pass, and the gradients of q, k, v and the bias
  int64_t page_size = 0;    // of paged keys and values, their pages in any order; 0: rows one after the other
  std::string folder = {};  // of .npy files, for real input
};

// A query or a few a sequence over a cache: memory is what limits it.
inline bool is_decode(const BenchCase& c) { return c.suite == "decode" || c.suite == "paged"; }

// What a device can do in the time that a case gets. emulated: enough to run every kind of kernel.
enum class CaseSize { cpu, gpu, emulated };

// The cases of a suite ("all": every one) for a dtype. brief leaves one case of a suite's kind.
std::vector<BenchCase> bench_cases(const std::string& suite, DType dtype, CaseSize size, bool brief);

}  // namespace fulmen::tools
