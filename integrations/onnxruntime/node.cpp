#include "node.h"

#include <bit>

#include "numbers.h"

namespace fulmen_ort {
namespace {

constexpr std::size_t kMostPlans = 256;  // a token of each context length needs one

std::vector<int64_t> key_of(const fulmen_tensors& t, const fulmen_options& options) {
  std::vector<int64_t> key = {std::bit_cast<int32_t>(options.softmax_scale), options.causal,
                              options.window_left, options.window_right};
  for (const fulmen_tensor* tensor : {&t.q, &t.k, &t.v, &t.out, &t.bias, &t.keep_mask, &t.sinks,
                                      &t.seqlens_k, &t.k_scale, &t.v_scale}) {
    key.push_back(tensor->dtype);
    key.insert(key.end(), tensor->shape, tensor->shape + 4);
    key.insert(key.end(), tensor->strides, tensor->strides + 4);
  }
  return key;
}

// Each channel of the outputs' heads times its factor.
void multiply(const fulmen_tensor& out, const std::vector<float>& factor, int64_t ratio) {
  const int64_t heads = out.shape[2], dim = out.shape[3];
  in_parallel(out.shape[0] * out.shape[1], out.shape[0] * out.shape[1] * heads * dim * 4,
              [&](int64_t index) {
                std::vector<float> row(static_cast<std::size_t>(dim));
                for (int64_t h = 0; h < heads; ++h) {
                  std::byte* at = row_of(out, index / out.shape[1], index % out.shape[1], h);
                  const float* factors = factor.data() + h / ratio * dim;
                  widen(at, out.dtype, dim, row.data());
                  for (int64_t i = 0; i < dim; ++i) row[static_cast<std::size_t>(i)] *= factors[i];
                  narrow(row.data(), out.dtype, dim, at);
                }
              });
}

}  // namespace

void Node::execute(Run& run) const {
  fulmen_options& options = run.options;
  if (attributes_.scale != 0) options.softmax_scale = attributes_.scale;
  options.softcap = attributes_.softcap;
  std::shared_ptr<fulmen_plan> plan;
  std::vector<int64_t> key = key_of(run.tensors, options);
  key.insert(key.end(), run.mask_mod.begin(), run.mask_mod.end());
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) plan = found->second;
  }
  if (plan == nullptr) {
    fulmen_plan* made = nullptr;
    if (fulmen_plan_create(&run.tensors, &options, "cpu", &made) != FULMEN_OK)
      fail(fulmen_last_error());
    plan = std::shared_ptr<fulmen_plan>(made, fulmen_plan_destroy);
    const std::scoped_lock lock(mutex_);
    if (plans_.size() >= kMostPlans) plans_.clear();
    plans_.emplace(std::move(key), plan);
  }
  if (fulmen_plan_run(plan.get(), nullptr, &run.tensors, nullptr, 0) != FULMEN_OK)
    fail(fulmen_last_error());
  if (!run.factor.empty())
    multiply(run.tensors.out, run.factor, run.tensors.q.shape[2] / run.tensors.v.shape[2]);
}

void Node::compute(OrtKernelContext* context) const {
  Run run(context);
  switch (op_) {
    case Operator::attention:
      return attention(run);
    case Operator::multi_head_attention:
      return multi_head_attention(run);
    case Operator::group_query_attention:
      return group_query_attention(run);
  }
}

}  // namespace fulmen_ort
