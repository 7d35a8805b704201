// What `fulmen bench` measures: real problems of chess engines, language models and text encoders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "memory.h"
#include "random_inputs.h"

namespace fulmen::tools {

struct BenchCase {
  std::string suite;  // "real", "prefill", "boards", "decode"
  std::string name;   // "D64 S1024 causal"
  DType dtype = DType::fp32;
  int64_t batch = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 0;
  bool causal = false;
  bool bias = false;
  std::string folder = {};  // of .npy files, for real input
};

// The cases of a suite ("all": every one) for a dtype. brief leaves one case of a suite's kind.
std::vector<BenchCase> bench_cases(const std::string& suite, DType dtype, bool brief);

// A case's tensors in memory of its own.
struct CaseData {
  std::vector<Memory> memory;
  AttentionTensors tensors;
  AttentionOptions options;
  Problem problem;
};
// Errors: a file is bad; the tensors would need more memory than max_bytes.
Result<std::unique_ptr<CaseData>> make_case_data(const BenchCase& bench_case, NormalPool& pool, const AttentionOptions& options,
                                                 std::size_t max_bytes);

}  // namespace fulmen::tools
