// The nodes of ONNX models that Fulmen serves, what their attributes say, and their computation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "run.h"

namespace fulmen_ort {

enum class Operator { attention, multi_head_attention, group_query_attention };

// How GroupQueryAttention's cache has scales: none, one, or one for each KV head and channel.
enum class Quantized { no, per_tensor, per_channel };

// A kernel's attributes, by the operator's own names.
struct Attributes {
  int64_t q_heads = 0, kv_heads = 0;  // 0 of Attention: its inputs have four dims
  float scale = 0;                    // 0: 1 / sqrt(head_dim)
  float softcap = 0;
  bool causal = false;
  int64_t window = -1;            // keys that a query attends, its own included; -1: all
  int64_t left = -1, right = -1;  // keys before and behind a query's own; -1: all
  // The cache has the last rows alone.
  bool sliding_window_cache = false;
  bool rotary = false, rotary_interleaved = false;
  bool smooth_softmax = false;
  float q_norm_epsilon = 1e-6F, k_norm_epsilon = 1e-6F;
  Quantized k_quantized = Quantized::no, v_quantized = Quantized::no;
  int64_t cache_bits = 0;  // 0: the cache is of the query's type
};

// What runs a node; from any threads at once.
class Node {
 public:
  Node(Operator op, Attributes attributes) : op_(op), attributes_(attributes) {}
  // Throws std::runtime_error with words where inputs contradict each other.
  void compute(OrtKernelContext* context) const;

 private:
  void attention(Run& run) const;
  void multi_head_attention(Run& run) const;
  void group_query_attention(Run& run) const;
  void execute(Run& run) const;

  Operator op_;
  Attributes attributes_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int64_t>, std::shared_ptr<fulmen_plan>> plans_;
};

}  // namespace fulmen_ort
