// One run of a node: its inputs and outputs, memory for what no output holds, and the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "value.h"

namespace fulmen_ort {

// fulmen_parallel_for on the session's own threads, of the run that this thread is in.
void on_session_threads(void*, int64_t count, void (*task)(void*, int64_t), void* arg);

// task(index) for every index in [0, count), at once where the work is worth it.
template <class Task>
void in_parallel(int64_t count, int64_t bytes, const Task& task) {
  constexpr int64_t kWorthThreads = 1 << 16;  // bytes: some 10 us of one thread
  if (bytes < kWorthThreads || count < 2) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  const auto call = [](void* arg, int64_t index) { (*static_cast<const Task*>(arg))(index); };
  on_session_threads(nullptr, count, call, const_cast<Task*>(&task));
}

// New rows of keys or values: what lies there, and what is added to every row.
struct Rows {
  fulmen_tensor tensor;
  const void* bias = nullptr;  // [heads, head_dim] of the rows' dtype, or null
};

struct Run {
  OrtKernelContext* context;
  fulmen_tensors tensors;
  fulmen_options options;
  std::string mask_mod;              // keeps the text alive
  std::vector<int32_t> lengths;      // and these of seqlens_k
  std::vector<float> sinks, factor;  // factor: of each channel of the outputs' heads, or empty

  explicit Run(OrtKernelContext* of);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Value input(std::size_t index, const char* name) const;
  // Not present() where the node has no such output.
  Value output(std::size_t index, const char* name, const std::vector<int64_t>& dims) const;
  // As long as the run, of any contents.
  void* memory(int64_t bytes);
  // All keys (which: 1) or values (2): past rows, then the new ones, in the output `present` where
  // the node has it, else in memory; the new rows as they lie where there is neither past nor bias.
  fulmen_tensor joined(const Value& past, const Rows& fresh, std::size_t which);
  // Rows [batch, seqlen, heads, head_dim] with their bias, in memory where there is one.
  fulmen_tensor with_bias(const Rows& rows);
  // Query i, at position before + i, attends the keys of positions from `left` before it to `right`
  // behind it; -1: all of that side. q and k are known.
  void attend_band(int64_t before, int64_t left, int64_t right);

 private:
  std::vector<std::unique_ptr<std::byte[]>> kept_;
};

// A cache's rows: [batch, heads, any, size] as the new ones, of their type.
fulmen_tensor as_past(const Value& past, const fulmen_tensor& fresh);
// The first `count` rows, with their bias, become rows from..from + count - 1 of `to`: both of one
// dtype.
void copy_rows(const Rows& rows, int64_t count, const fulmen_tensor& to, int64_t from);
// Where row s of head h of sequence b begins.
std::byte* row_of(const fulmen_tensor& t, int64_t b, int64_t s, int64_t h);

}  // namespace fulmen_ort
