// A plan refuses tensors that it was not made for: names tensor, value and its own, writes nothing.
// Through C++ and through C.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "api/c/translation.h"
#include "c_views.h"
#include "small_call.h"

namespace fulmen {
namespace {

using testing::SmallCall;
using testing::views;

constexpr const char* kMadeFor = "; this plan was made for ";

Tensor numbers(std::vector<int>& values, int64_t rows = 1) {
  const int64_t columns = static_cast<int64_t>(values.size()) / rows;
  return {values.data(), DType::int32, {1, 1, rows, columns}, {0, 0, columns, 1}};
}

// A call, the plan that was made for it, and the tables of its sequences.
struct Planned {
  SmallCall call;
  std::vector<int> cu_q{0, 5, 10}, cu_k{0, 7, 14}, used{7, 3}, leftpad{0, 1};
  std::vector<int> pages{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  bool backward = false;

  Result<Plan> plan() const {
    const auto problem = backward ? make_backward_problem(call.tensors, call.options)
                                  : make_problem(call.tensors, call.options);
    return problem.ok() ? fulmen::plan(problem.value(), "cpu", call.options) : problem.status();
  }
  bool uses(const TensorField& field) const {
    return (call.tensors->*field.tensor).data != nullptr;
  }
  bool untouched() const { return backward ? call.gradients_untouched() : call.untouched(); }
};

void whole(Planned& p) { p.call.with_everything(); }
void gradients(Planned& p) {
  p.call.with_gradients();
  p.backward = true;
}
void padded(Planned& p) {
  p.call.tensors.seqlens_k = numbers(p.used);
  p.call.tensors.leftpad_k = numbers(p.leftpad);
}
void paged(Planned& p) {
  padded(p);
  p.call.tensors.k =
      Tensor::bshd(p.call.k.data(), DType::fp32, 14, 1, SmallCall::kKvHeads, SmallCall::kDim);
  p.call.tensors.v =
      Tensor::bshd(p.call.v.data(), DType::fp32, 14, 1, SmallCall::kKvHeads, SmallCall::kDim);
  p.call.tensors.block_table = numbers(p.pages, 2);
}
void packed(Planned& p) {
  AttentionTensors& t = p.call.tensors;
  t.q = Tensor::bshd(p.call.q.data(), DType::fp32, 1, 10, SmallCall::kHeads, SmallCall::kDim);
  t.out = Tensor::bshd(p.call.out.data(), DType::fp32, 1, 10, SmallCall::kHeads, SmallCall::kDim);
  t.lse = {p.call.lse.data(), DType::fp32, {1, SmallCall::kHeads, 10, 1}, {0, 10, 1, 1}};
  t.k = Tensor::bshd(p.call.k.data(), DType::fp32, 1, 14, SmallCall::kKvHeads, SmallCall::kDim);
  t.v = Tensor::bshd(p.call.v.data(), DType::fp32, 1, 14, SmallCall::kKvHeads, SmallCall::kDim);
  t.cu_seqlens_q = numbers(p.cu_q);
  t.cu_seqlens_k = numbers(p.cu_k);
  p.call.options.max_seqlen_q = 5;
  p.call.options.max_seqlen_k = 7;
}

struct Kind {
  const char* name;
  void (*set_up)(Planned&);
};

class PlanTensors : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { GetParam().set_up(planned_); }
  Planned planned_;
};

// Tensors of the call with one member changed, and which.
struct Bent {
  AttentionTensors tensors;
  std::string said;
};

std::vector<Bent> bent_in_each_member(const Planned& planned) {
  std::vector<Bent> all;
  for (const TensorField& field : kTensorTable) {
    if (!planned.uses(field)) continue;
    const auto bend = [&](const char* member, const auto& change) {
      all.push_back({planned.call.tensors, std::string(field.name) + "." + member + " is "});
      change(all.back().tensors->*field.tensor);
    };
    bend("dtype", [](Tensor& t) { t.dtype = DType::fp16; });
    // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange)
    bend("dtype", [](Tensor& t) { t.dtype = static_cast<DType>(17); });
    for (std::size_t d = 0; d < 4; ++d) {
      for (const int64_t by : {-1, 2, 5}) {
        bend("shape", [d, by](Tensor& t) { t.shape[d] += by; });
      }
      if ((planned.call.tensors->*field.tensor).shape[d] == 1) continue;
      for (const int64_t by : {-1, 1}) {
        bend("strides", [d, by](Tensor& t) { t.strides[d] += by; });
      }
    }
  }
  return all;
}

TEST_P(PlanTensors, EachMemberOfEachIsCompared) {
  const Result<Plan> plan = planned_.plan();
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const SmallCall before = planned_.call;
  for (const Bent& bent : bent_in_each_member(planned_)) {
    SCOPED_TRACE(bent.said);
    const Status status = plan->run(nullptr, bent.tensors, nullptr, 0);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message().find(bent.said), 0U) << status.message();
    EXPECT_NE(status.message().find(kMadeFor), std::string::npos) << status.message();
  }
  EXPECT_TRUE(planned_.untouched());
  EXPECT_TRUE(planned_.call.out == before.out && planned_.call.lse == before.lse);
  const Status status = plan->run(nullptr, planned_.call.tensors, nullptr, 0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(planned_.untouched());
}

TEST_P(PlanTensors, EachMemberOfEachIsComparedInC) {
  const fulmen_tensors tensors = views(planned_.call);
  fulmen_options options;
  fulmen_options_init(&options);
  options.max_seqlen_q = planned_.call.options.max_seqlen_q;
  options.max_seqlen_k = planned_.call.options.max_seqlen_k;
  fulmen_plan* plan = nullptr;
  const auto create = planned_.backward ? fulmen_plan_create_backward : fulmen_plan_create;
  ASSERT_EQ(create(&tensors, &options, "cpu", &plan), FULMEN_OK) << fulmen_last_error();
  for (const Bent& bent : bent_in_each_member(planned_)) {
    const fulmen_tensors given = views(bent.tensors);
    EXPECT_EQ(fulmen_plan_run(plan, nullptr, &given, nullptr, 0), FULMEN_INVALID_ARGUMENT)
        << bent.said;
    const std::string message = fulmen_last_error();
    EXPECT_EQ(message.find(bent.said), 0U) << message;
    EXPECT_NE(message.find(kMadeFor), std::string::npos) << message;
  }
  EXPECT_TRUE(planned_.untouched());
  EXPECT_EQ(fulmen_plan_run(plan, nullptr, &tensors, nullptr, 0), FULMEN_OK) << fulmen_last_error();
  EXPECT_FALSE(planned_.untouched());
  fulmen_plan_destroy(plan);
}

TEST_P(PlanTensors, StridesOfOneElementAreNotCompared) {
  const Result<Plan> plan = planned_.plan();
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  AttentionTensors tensors = planned_.call.tensors;
  for (const TensorField& field : kTensorTable) {
    if (!planned_.uses(field)) continue;
    Tensor& tensor = tensors->*field.tensor;
    for (std::size_t d = 0; d < 4; ++d) {
      if (tensor.shape[d] == 1) tensor.strides[d] = -77;
    }
  }
  const Status status = plan->run(nullptr, tensors, nullptr, 0);
  EXPECT_TRUE(status.ok()) << status.message();
}

// The declarations allow tensors of which only data is set: they have the plan's shapes.
TEST_P(PlanTensors, PointersAloneAreTaken) {
  const Result<Plan> plan = planned_.plan();
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  AttentionTensors pointers;
  for (const TensorField& field : kTensorTable)
    (pointers->*field.tensor).data = (planned_.call.tensors->*field.tensor).data;
  AttentionTensors without = pointers;
  without.k = {};
  const Status refused = plan->run(nullptr, without, nullptr, 0);
  EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.message().find("k.data is null"), std::string::npos) << refused.message();
  AttentionTensors other = pointers;
  other.q.dtype = DType::bf16;
  EXPECT_EQ(plan->run(nullptr, other, nullptr, 0)
                .message()
                .find("q.dtype is bf16; this plan was made for fp32"),
            0U);
  EXPECT_TRUE(planned_.untouched());
  const Status status = plan->run(nullptr, pointers, nullptr, 0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(planned_.untouched());
}

INSTANTIATE_TEST_SUITE_P(Api, PlanTensors,
                         ::testing::Values(Kind{"Whole", whole}, Kind{"Gradients", gradients},
                                           Kind{"Padded", padded}, Kind{"Paged", paged},
                                           Kind{"Packed", packed}),
                         [](const auto& info) { return info.param.name; });

TEST(PlanTensor, MoreOrFewerSequencesThanItWasMadeFor) {
  SmallCall one, two;
  for (Tensor* t : std::initializer_list<Tensor*>{&one.tensors.q, &one.tensors.k, &one.tensors.v,
                                                  &one.tensors.out})
    t->shape[0] = 1;
  const auto of_one = plan(make_problem(one.tensors, {}).value(), "cpu");
  const auto of_two = plan(make_problem(two.tensors, {}).value(), "cpu");
  EXPECT_EQ(of_one->run(nullptr, two.tensors, nullptr, 0).message(),
            "q.shape is [2, 5, 4, 8]; this plan was made for [1, 5, 4, 8]");
  EXPECT_EQ(of_two->run(nullptr, one.tensors, nullptr, 0).message(),
            "q.shape is [1, 5, 4, 8]; this plan was made for [2, 5, 4, 8]");
  EXPECT_TRUE(one.untouched() && two.untouched());
}

// A dim of one element and one of stride 0 are the same bias; a dbias that is a sum has one
// element.
TEST(PlanTensor, BroadcastDimsOfTheBias) {
  SmallCall call;
  call.with_gradients();
  call.tensors.bias = Tensor::bhqk(call.bias.data(), DType::fp32, 1, 4, 1, 7);
  call.tensors.dbias = Tensor::bhqk(call.dbias.data(), DType::fp32, 1, 4, 1, 7);
  const auto made = plan(make_backward_problem(call.tensors, call.options).value(), "cpu");
  ASSERT_TRUE(made.ok()) << made.status().message();
  AttentionTensors given = call.tensors;
  given.bias.shape[0] = 2;
  given.bias.strides[0] = 28;
  EXPECT_EQ(made->run(nullptr, given, nullptr, 0).message(),
            "bias.strides is [28, 7, 0, 1]; this plan was made for [0, 7, 0, 1]");
  given.bias.shape[0] = 3;
  EXPECT_EQ(made->run(nullptr, given, nullptr, 0).message(),
            "bias.shape is [3, 4, 1, 7]; this plan was made for [1, 4, 1, 7]");
  given = call.tensors;
  given.dbias.shape[0] = 2;
  EXPECT_EQ(made->run(nullptr, given, nullptr, 0).message(),
            "dbias.shape is [2, 4, 1, 7]; this plan was made for [1, 4, 1, 7]");
  EXPECT_TRUE(call.gradients_untouched());
  given = call.tensors;
  given.bias.shape = {2, 4, 5, 7};
  EXPECT_TRUE(made->run(nullptr, given, nullptr, 0).ok()) << "strides of 0";
}

// The plan knows max_seqlen only as far as packed tensors have rows, so a bias may be for longer
// sequences.
TEST(PlanTensor, BiasByMaxSeqlen) {
  Planned planned;
  packed(planned);
  SmallCall& call = planned.call;
  call.options.max_seqlen_q = 12;
  call.options.max_seqlen_k = 20;
  std::vector<float> bias(2 * 4 * 12 * 20, 0.0F);
  call.tensors.bias = Tensor::bhqk(bias.data(), DType::fp32, 2, 4, 12, 20);
  const auto made = planned.plan();
  ASSERT_TRUE(made.ok()) << made.status().message();
  AttentionTensors given = call.tensors;
  given.bias.shape[2] = 9;
  EXPECT_EQ(made->run(nullptr, given, nullptr, 0).message(),
            "bias.shape is [2, 4, 9, 20]; this plan was made for [2, 4, 10, 14] or more queries "
            "and keys");
  EXPECT_TRUE(call.untouched());
  const Status status = made->run(nullptr, call.tensors, nullptr, 0);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PlanTensor, EmptyProblems) {
  SmallCall call;
  call.with_gradients();
  for (const TensorField& field : kTensorTable) {
    Tensor& tensor = call.tensors->*field.tensor;
    if (field.tensor != &AttentionTensors::sinks && field.tensor != &AttentionTensors::dsinks &&
        tensor.shape[3] > 0) {
      tensor.shape[0] = field.tensor == &AttentionTensors::alibi_slopes ? 1 : 0;
    }
  }
  // Broadcast over none, summed over none.
  call.tensors.bias.shape[0] = call.tensors.dbias.shape[0] = 1;
  for (const bool backward : {false, true}) {
    const auto problem =
        backward ? make_backward_problem(call.tensors, {}) : make_problem(call.tensors, {});
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const auto made = plan(problem.value(), "cpu");
    ASSERT_TRUE(made.ok()) << made.status().message();
    AttentionTensors given = call.tensors;
    given.q.strides = {1, 2, 3, 4};
    Status status = made->run(nullptr, given, nullptr, 0);
    EXPECT_TRUE(status.ok()) << status.message();
    given.q.shape[0] = 1;
    status = made->run(nullptr, given, nullptr, 0);
    EXPECT_EQ(status.message(), "q.shape is [1, 5, 4, 8]; this plan was made for [0, 5, 4, 8]");
    given.q = {};
    EXPECT_EQ(made->run(nullptr, given, nullptr, 0).code(), StatusCode::invalid_argument);
  }
}

// Strides of an empty dbias are 0 whether or not it is a sum, so a plan cannot tell the two apart.
TEST(PlanTensor, EmptyBiasGradients) {
  SmallCall call;
  call.with_gradients();
  for (Tensor* t : std::initializer_list<Tensor*>{&call.tensors.k, &call.tensors.v,
                                                  &call.tensors.dk, &call.tensors.dv})
    t->shape[1] = 0;
  call.tensors.bias = Tensor::bhqk(call.bias.data(), DType::fp32, 2, 4, 5, 0);
  call.tensors.keep_mask = {};
  for (const int64_t heads : {1, 4}) {
    call.tensors.dbias = Tensor::bhqk(call.dbias.data(), DType::fp32, 1, heads, 5, 0);
    const auto made = plan(make_backward_problem(call.tensors, call.options).value(), "cpu");
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Status status = made->run(nullptr, call.tensors, nullptr, 0);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// What the other pass uses may be of any shape.
TEST(PlanTensor, ForwardLooksAtNoGradient) {
  SmallCall call;
  call.with_gradients();
  const auto made = plan(make_problem(call.tensors, {}).value(), "cpu");
  ASSERT_TRUE(made.ok()) << made.status().message();
  AttentionTensors given = call.tensors;
  for (Tensor* t : std::initializer_list<Tensor*>{&given.dout, &given.dlse, &given.dq, &given.dk,
                                                  &given.dv, &given.dbias, &given.dsinks}) {
    t->shape = {9, 9, 9, 9};
    t->dtype = DType::boolean;
  }
  const Status status = made->run(nullptr, given, nullptr, 0);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(call.gradients_untouched());
}

}  // namespace
}  // namespace fulmen
