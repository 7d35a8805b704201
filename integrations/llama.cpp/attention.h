// Runs GGML_OP_FLASH_ATTN_EXT by Fulmen: plans, which are kept, and memory for what is rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "operation.h"

namespace fulmen_ggml {

// Why Fulmen does not serve the operation, in words, or "". Reads no data of tensors. Any thread.
std::string refusal(const Operation& operation);

struct PlanDeleter {
  void operator()(fulmen_plan* plan) const { fulmen_plan_destroy(plan); }
};
using Plan = std::unique_ptr<fulmen_plan, PlanDeleter>;

// What one ggml backend computes by: one call at a time.
class Attention {
 public:
  // parallel_for: whose threads compute, with its context; null: the library's own.
  explicit Attention(fulmen_parallel_for parallel_for = nullptr, void* context = nullptr)
      : parallel_for_(parallel_for), context_(context) {}

  // 0: OMP_NUM_THREADS, else all processors.
  void set_num_threads(int num_threads) { num_threads_ = num_threads; }
  // Computes an operation that refusal() does not refuse. Returns "" or what went wrong.
  std::string run(const Operation& operation);
  // The plan of the last run and why other kernels do not serve it; "" before.
  const char* explain() const { return last_ == nullptr ? "" : fulmen_plan_explain(last_); }

 private:
  fulmen_plan* plan_for(const Call& call);
  void in_parallel(int64_t rows, void (*task)(void* arg, int64_t part), void* arg) const;

  fulmen_parallel_for parallel_for_;
  void* context_;
  int num_threads_ = 0;
  std::map<std::vector<int64_t>, Plan> plans_;
  fulmen_plan* last_ = nullptr;
  std::vector<uint8_t> keep_;
  std::vector<uint16_t> q_, out_;  // in 16 bits
  std::vector<float> slopes_;
  std::vector<std::byte> workspace_;
};

}  // namespace fulmen_ggml
