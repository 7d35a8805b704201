// The nodes of ONNX models that Fulmen serves, what their attributes say, and their computation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fulmen/fulmen_c.h"
#include "onnxruntime_c_api.h"

namespace fulmen_ort {

// OrtApi of the version that the headers have; set once, when ORT loads the library.
extern const OrtApi* ort;

enum class Operator { attention, multi_head_attention, group_query_attention };

// A kernel's attributes, by the operator's own names.
struct Attributes {
  int64_t q_heads = 0, kv_heads = 0;  // 0 of Attention: its inputs have four dims
  float scale = 0;                    // 0: 1 / sqrt(head_dim)
  float softcap = 0;
  bool causal = false;
  int64_t window = -1;  // keys that a query attends, its own included; -1: all
  bool rotary = false, rotary_interleaved = false;
};

// An input or output: no data and no dims where the node leaves it out.
struct Value {
  void* data = nullptr;
  int32_t dtype = -1;  // fulmen_dtype
  std::vector<int64_t> dims;
  bool present() const { return dtype >= 0; }
  int64_t dim(std::size_t i) const { return i < dims.size() ? dims[i] : 1; }
};

// What runs a node; from any threads at once.
class Node {
 public:
  Node(Operator op, Attributes attributes) : op_(op), attributes_(attributes) {}
  // Throws std::runtime_error with words where inputs contradict each other.
  void compute(OrtKernelContext* context) const;

 private:
  struct Run;
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
