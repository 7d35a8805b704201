#include "score/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/fork_safe.h"
#include "score/derivative.h"
#include "score/parser.h"

namespace fulmen {

std::string_view ScoreFunctions::score_mod() const noexcept {
  return impl_ == nullptr ? std::string_view() : impl_->score_text;
}
std::string_view ScoreFunctions::mask_mod() const noexcept {
  return impl_ == nullptr ? std::string_view() : impl_->mask_text;
}
std::span<const ScoreFunctions::Tensor> ScoreFunctions::tensors() const noexcept {
  return impl_ == nullptr ? std::span<const Tensor>() : impl_->tensors;
}

bool ScoreFunctions::operator==(const ScoreFunctions& other) const noexcept {
  if (impl_ == other.impl_) return true;
  return impl_ != nullptr && other.impl_ != nullptr && score_mod() == other.score_mod() &&
         mask_mod() == other.mask_mod() && impl_->tensors == other.impl_->tensors &&
         impl_->with_gradients == other.impl_->with_gradients;
}

std::size_t ScoreFunctions::hash() const noexcept {
  if (impl_ == nullptr) return 0;
  std::size_t hash = 0;
  const auto mix = [&hash](std::size_t x) {
    hash ^= x + 0x9E3779B97F4A7C15ULL + (hash << 6U) + (hash >> 2U);
  };
  const std::hash<std::string_view> text;
  mix(text(score_mod()));
  mix(text(mask_mod()));
  mix(impl_->with_gradients ? 1 : 0);
  for (const Tensor& tensor : impl_->tensors) {
    mix(text(tensor.name));
    mix(static_cast<std::size_t>(tensor.dtype) * 8 + static_cast<std::size_t>(tensor.dims));
    mix(static_cast<std::size_t>(tensor.has_gradient) +
        2 * static_cast<std::size_t>(tensor.gradient_dtype));
    for (const auto* numbers : {&tensor.shape, &tensor.strides, &tensor.gradient_strides}) {
      for (const int64_t number : *numbers) mix(std::hash<int64_t>{}(number));
    }
  }
  return hash;
}

namespace score {
namespace {

using Impl = ScoreFunctions::Impl;

Status refused(const char* function, const TextError& error) {
  return {StatusCode::invalid_argument, fmt::format("{}, line {}, column {}: {}", function,
                                                    error.line, error.column, error.message)};
}

Result<Graph> parsed(const char* name, const std::string& text, FunctionKind kind,
                     const std::vector<Declared>& tensors) {
  Builder builder;
  const Parsed result = parse(text, kind, tensors, builder);
  if (!result.error.message.empty()) return refused(name, result.error);
  return live_part({builder.nodes(), {result.result}});
}

// The score's graph again, in a builder with room for derivatives.
int32_t copy(const Graph& from, Builder& to) {
  std::vector<int32_t> ids;
  for (const Node& node : from.nodes) {
    const auto argument = [&](int a) {
      return a < node.arguments ? ids[static_cast<std::size_t>(node.args[a])] : -1;
    };
    int32_t id = 0;
    if (node.op == Op::constant) {
      id = node.type == Type::real      ? to.real(node.constant.real)
           : node.type == Type::integer ? to.integer(node.constant.integer)
                                        : to.boolean(node.constant.integer != 0);
    } else if (node.op == Op::load) {
      std::vector<int32_t> indices;
      for (int a = 0; a < node.arguments; ++a) indices.push_back(argument(a));
      id = to.load(node.tensor, node.type, indices);
    } else {
      id = node.arguments == 0 ? to.leaf(node.op)
                               : to.make(node.op, argument(0), argument(1), argument(2));
    }
    ids.push_back(id);
  }
  return ids[static_cast<std::size_t>(from.results.front())];
}

Status differentiate(Impl& impl) {
  Builder builder(kMaxDerivativeNodes);
  const int32_t value = copy(impl.score, builder);
  std::vector<bool> wanted;
  for (const ScoreFunctions::Tensor& tensor : impl.tensors) wanted.push_back(tensor.has_gradient);
  const Derivatives derivatives = differentiate(builder, value, wanted);
  if (builder.full()) {
    return {StatusCode::invalid_argument,
            fmt::format("score_mod's derivatives have more than {} nodes: a smaller function is "
                        "needed",
                        kMaxDerivativeNodes)};
  }
  std::vector<int32_t> results{derivatives.by_score};
  for (const LoadGradient& load : derivatives.loads) {
    const Node& node = builder.node(load.load);
    const auto by = static_cast<int>(results.size());
    impl.loads.push_back({node.tensor, by, by + 1});
    results.push_back(load.by);
    for (int a = 0; a < node.arguments; ++a) results.push_back(node.args[a]);
  }
  results.push_back(value);
  impl.gradient = live_part({builder.nodes(), std::move(results)});
  return {};
}

}  // namespace

ScoreFunctions what_is_left(std::shared_ptr<ScoreFunctions::Impl> impl) {
  const bool gradients = std::any_of(impl->tensors.begin(), impl->tensors.end(),
                                     [](const auto& tensor) { return tensor.has_gradient; });
  if (!impl->has_score() && !impl->has_mask() && !gradients) return {};
  return ScoreFunctions(std::move(impl));
}

namespace {

// Parses both texts, and compiles what they say.
Status complete(Impl& impl) {
  std::vector<Declared> declared;
  for (const ScoreFunctions::Tensor& tensor : impl.tensors)
    declared.push_back({tensor.name, type_of(tensor.dtype), tensor.dims});
  if (!impl.score_text.empty()) {
    Result<Graph> graph = parsed("score_mod", impl.score_text, FunctionKind::score_mod, declared);
    if (!graph.ok()) return graph.status();
    impl.score = std::move(graph).value();
  }
  if (!impl.mask_text.empty()) {
    Result<Graph> graph = parsed("mask_mod", impl.mask_text, FunctionKind::mask_mod, declared);
    if (!graph.ok()) return graph.status();
    impl.mask = std::move(graph).value();
  }
  if (impl.has_score()) {
    const Status status = differentiate(impl);
    if (!status.ok() && impl.with_gradients) return status;
  }
  impl.score_code = compile(impl.score);
  impl.mask_code = compile(impl.mask);
  // A backward kernel wants the score and all that follows from it at once.
  if (impl.with_gradients && impl.has_score()) impl.gradient_code = compile(impl.gradient);
  return {};
}

// Those of calls before, by their hash: the same call comes again and again, and parsing takes
// longer than all else of a small one. What was kept is whole, and never changes.
class KeptFunctions {
 public:
  // functions: texts and tensors alone. Returns the same ones, whole; none where they are new.
  ScoreFunctions find(const ScoreFunctions& functions) {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(functions.hash());
    return found != kept_.end() && found->second == functions ? found->second : ScoreFunctions();
  }
  void keep(const ScoreFunctions& functions) {
    constexpr std::size_t kMost = 256;
    std::unordered_map<std::size_t, ScoreFunctions> ended;  // after the lock
    const std::lock_guard lock(mutex_);
    if (kept_.size() >= kMost) kept_.swap(ended);
    kept_.insert_or_assign(functions.hash(), functions);
  }

 private:
  Mutex mutex_;
  std::unordered_map<std::size_t, ScoreFunctions> kept_;
};

KeptFunctions& kept_functions() {
  constinit static MadeOnce<KeptFunctions> made;
  return made.get();
}

}  // namespace

Result<ScoreFunctions> make_functions(const std::string& score_mod, const std::string& mask_mod,
                                      std::vector<ScoreFunctions::Tensor> tensors,
                                      bool with_gradients) {
  auto impl = std::make_shared<Impl>();
  impl->with_gradients = with_gradients;
  impl->score_text = score_mod;
  impl->mask_text = mask_mod;
  impl->tensors = std::move(tensors);
  const ScoreFunctions asked(impl);
  if (ScoreFunctions known = kept_functions().find(asked); known.any()) return known;
  if (Status status = complete(*impl); !status.ok()) return status;
  kept_functions().keep(asked);
  return asked;
}

void bind(const ScoreFunctions& functions, std::span<const FunctionTensor> tensors, Elements* to) {
  const std::span<const ScoreFunctions::Tensor> specs = functions.tensors();
  for (std::size_t i = 0; i < specs.size(); ++i)
    to[i] = {tensors[i].tensor.data, specs[i].dtype, specs[i].dims, specs[i].shape,
             specs[i].strides};
}

}  // namespace score
}  // namespace fulmen
