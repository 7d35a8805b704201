// Every refusal names the argument, its value and what is accepted, and writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "fulmen/tensor_member.h"
#include "small_call.h"
#include "support/run_kernel.h"

namespace fulmen {
namespace {

using testing::Bad;
using testing::SmallCall;

class Errors : public ::testing::TestWithParam<Bad> {};

TEST_P(Errors, NameArgumentValueAndWhatIsAccepted) {
  SmallCall call;
  call.with_everything();
  GetParam().bend(call);
  const Status status = attention(call.tensors, call.options);
  testing::expect_refused(status, GetParam());
  EXPECT_TRUE(call.untouched());
}

const float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Api, Errors,
    ::testing::Values(
        Bad{"QMissing", [](SmallCall& c) { c.tensors.q = {}; }, {"q is missing"}},
        Bad{"OutMissing", [](SmallCall& c) { c.tensors.out = {}; }, {"out is missing"}},
        Bad{"QBoolean",
            [](SmallCall& c) { c.tensors.q.dtype = DType::boolean; },
            {"q.dtype", "boolean", "fp32, fp16 and bf16"}},
        Bad{"MixedDtype",
            [](SmallCall& c) { c.tensors.k.dtype = DType::int32; },
            {"k.dtype is int32", "fp32, fp16, bf16, int8, fp8 and the block formats"}},
        Bad{"MixedValues",
            [](SmallCall& c) { c.tensors.v.dtype = static_cast<DType>(99); },
            {"v.dtype is 99", "int8, fp8 and the block formats"}},
        Bad{"OutDtype",
            [](SmallCall& c) { c.tensors.out.dtype = DType::bf16; },
            {"out.dtype is bf16", "agree"}},
        Bad{"HeadDimZero",
            [](SmallCall& c) { c.tensors.q.shape[3] = 0; },
            {"q.shape", "head_dim is 0", "1 to 576"}},
        Bad{"HeadDimTooBig",
            [](SmallCall& c) { c.tensors.q.shape[3] = 577; },
            {"q.shape", "577", "1 to 576"}},
        Bad{"HeadDimV",
            [](SmallCall& c) { c.tensors.v.shape[3] = 513; },
            {"v.shape", "513", "1 to 512"}},
        Bad{"Grouping",
            [](SmallCall& c) { c.tensors.k.shape[2] = 3; },
            {"k.shape", "num_kv_heads is 3", "divide num_heads = 4"}},
        Bad{"KLength",
            [](SmallCall& c) { c.tensors.v.shape[1] = 6; },
            {"v.shape", "6", "seqlen_k"}},
        Bad{"KDim", [](SmallCall& c) { c.tensors.k.shape[3] = 7; }, {"k.shape", "7", "head_dim"}},
        Bad{"OutShape",
            [](SmallCall& c) { c.tensors.out.shape[1] = 4; },
            {"out.shape", "4", "seqlen_q"}},
        Bad{"LastStride",
            [](SmallCall& c) { c.tensors.q.strides[3] = 2; },
            {"q.strides", "2", "contiguous, stride 1"}},
        Bad{"NegativeStride",
            [](SmallCall& c) { c.tensors.v.strides[1] = -8; },
            {"v.strides", "-8", "negative"}},
        Bad{"NegativeSize",
            [](SmallCall& c) { c.tensors.q.shape[0] = -1; },
            {"q.shape", "-1", "0 to 2^40"}},
        Bad{"HugeStride",
            [](SmallCall& c) { c.tensors.q.strides[0] = INT64_MAX; },
            {"q with shape", "more memory"}},
        Bad{"TooManyElements",
            [](SmallCall& c) {
              c.tensors.q =
                  Tensor::bshd(c.q.data(), DType::fp32, int64_t{1} << 40, int64_t{1} << 40, 4, 8);
            },
            {"q with shape", "1099511627776", "up to 2^48 elements"}},
        Bad{"TooManyBesideNone",  // a dim of 0 does not excuse the others
            [](SmallCall& c) { c.tensors.q.shape = {int64_t{1} << 40, 0, int64_t{1} << 40, 8}; },
            {"q with shape", "up to 2^48 elements"}},
        Bad{"DtypeOutsideTheEnum",
            [](SmallCall& c) { c.tensors.q.dtype = static_cast<DType>(17); },
            {"q.dtype is 17", "bf16"}},
        Bad{"OutOverlapsItself",
            [](SmallCall& c) { c.tensors.out.strides[1] = 0; },
            {"out with shape", "overlaps itself"}},
        Bad{"BiasDtype",
            [](SmallCall& c) { c.tensors.bias.dtype = DType::boolean; },
            {"bias.dtype is boolean", "fp32, fp16 and bf16"}},
        Bad{"BiasShape",
            [](SmallCall& c) { c.tensors.bias.shape[2] = 3; },
            {"bias.shape", "3", "may be 1"}},
        Bad{"BiasKeys",
            [](SmallCall& c) { c.tensors.bias.shape[3] = 1; },
            {"bias.shape", "seqlen_k"}},
        Bad{"BiasLastStride",
            [](SmallCall& c) { c.tensors.bias.strides[3] = 0; },
            {"bias.strides", "0", "contiguous, stride 1"}},
        Bad{"KeepDtype",
            [](SmallCall& c) { c.tensors.keep_mask.dtype = DType::fp32; },
            {"keep_mask.dtype is fp32", "boolean"}},
        Bad{"KeepShape",
            [](SmallCall& c) { c.tensors.keep_mask.shape[0] = 3; },
            {"keep_mask.shape", "3"}},
        Bad{"AlibiDtype",
            [](SmallCall& c) { c.tensors.alibi_slopes.dtype = DType::fp16; },
            {"alibi_slopes.dtype is fp16", "fp32"}},
        Bad{"AlibiShape",
            [](SmallCall& c) { c.tensors.alibi_slopes.shape[3] = 5; },
            {"alibi_slopes.shape", "5", "[batch, 1, 1, num_heads] = [2, 1, 1, 4]"}},
        Bad{"SinksDtype",
            [](SmallCall& c) { c.tensors.sinks.dtype = DType::bf16; },
            {"sinks.dtype is bf16", "fp32"}},
        Bad{"SinksShape",
            [](SmallCall& c) { c.tensors.sinks.shape[0] = 2; },
            {"sinks.shape", "[1, 1, 1, num_heads] = [1, 1, 1, 4]"}},
        Bad{"ScaleOfKeysDtype",
            [](SmallCall& c) { c.tensors.k_scale = Tensor::vector(c.q.data(), DType::bf16, 1); },
            {"k_scale.dtype is bf16", "fp32 and fp16"}},
        Bad{"ScaleOfValuesShape",
            [](SmallCall& c) { c.tensors.v_scale = Tensor::vector(c.q.data(), DType::fp32, 4); },
            {"v_scale.shape is [1, 1, 1, 4]", "[batch, 1, num_kv_heads, 1] = [2, 1, 2, 1]",
             "each dim may be 1"}},
        Bad{"LseDtype",
            [](SmallCall& c) { c.tensors.lse.dtype = DType::bf16; },
            {"lse.dtype is bf16", "fp32"}},
        Bad{"LseOverlapsItself",
            [](SmallCall& c) { c.tensors.lse.strides[1] = 1; },
            {"lse with shape", "overlaps itself", "its own place"}},
        Bad{"LseShape",
            [](SmallCall& c) { c.tensors.lse.shape[2] = 6; },
            {"lse.shape", "6", "num_heads, seqlen_q, 1"}},
        Bad{"ScaleNan",
            [](SmallCall& c) { c.options.softmax_scale = kNan; },
            {"softmax_scale is nan", "finite"}},
        Bad{"SoftcapNegative",
            [](SmallCall& c) { c.options.softcap = -1; },
            {"softcap is -1", "0 (off) or above"}},
        Bad{"ScaleInfinite",
            [](SmallCall& c) { c.options.softmax_scale = INFINITY; },
            {"softmax_scale is inf", "finite"}},
        Bad{"ScaleHuge",
            [](SmallCall& c) { c.options.softmax_scale = 3e38F; },
            {"softmax_scale is 3e+38", "1e+18"}},
        Bad{"ScaleHugeNegative",
            [](SmallCall& c) { c.options.softmax_scale = -3e38F; },
            {"softmax_scale is -3e+38", "-1e+18"}},
        Bad{"SoftcapHuge",
            [](SmallCall& c) { c.options.softcap = 1e6F; },
            {"softcap is 1000000", "1000"}},
        Bad{"SoftcapTiny",
            [](SmallCall& c) { c.options.softcap = 1e-30F; },
            {"softcap is 1e-30", "1e-18 to 1000"}},
        Bad{"SoftcapNan",
            [](SmallCall& c) { c.options.softcap = kNan; },
            {"softcap is nan", "finite"}},
        Bad{"SoftcapInfinite",
            [](SmallCall& c) { c.options.softcap = INFINITY; },
            {"softcap is inf", "finite"}},
        Bad{"Causal",
            [](SmallCall& c) { c.options.causal = static_cast<Causal>(7); },
            {"causal is 7", "bottom_right (1)"}},
        Bad{"WindowLeft",
            [](SmallCall& c) { c.options.window_left = -2; },
            {"window_left is -2", "-1 (unlimited)"}},
        Bad{"WindowRight",
            [](SmallCall& c) { c.options.window_right = -5; },
            {"window_right is -5", "-1 (unlimited)"}},
        Bad{"Threads",
            [](SmallCall& c) { c.options.num_threads = -1; },
            {"num_threads is -1", "0"}},
        Bad{"Kernel",
            [](SmallCall& c) { c.options.kernel = "cpu.nothing"; },
            {"kernel is \"cpu.nothing\"", "has no kernel of that name; known are"}},
        Bad{"NullK", [](SmallCall& c) { c.tensors.k.data = nullptr; }, {"k.data is null", "bytes"}},
        Bad{"NullBias",
            [](SmallCall& c) { c.tensors.bias.data = nullptr; },
            {"bias.data is null", "bytes"}},
        Bad{"NullOut",
            [](SmallCall& c) { c.tensors.out.data = nullptr; },
            {"out.data is null", "bytes"}},
        Bad{"MisalignedV",
            [](SmallCall& c) { c.tensors.v.data = reinterpret_cast<char*>(c.v.data()) + 1; },
            {"v.data is 0x", "divisible by the 4 bytes"}},
        Bad{"OutOverlapsBias",
            // bias is smaller and lies within out, so that the check meets no neighbour in memory
            // first.
            [](SmallCall& c) { c.tensors.bias.data = c.out.data(); },
            {"out at", "overlaps bias", "memory of their own"}},
        Bad{"OutOverlapsQ",
            [](SmallCall& c) { c.tensors.out.data = c.q.data() + 3; },
            {"out at", "overlaps q"}},
        Bad{"LseOverlapsOut",
            [](SmallCall& c) { c.tensors.lse.data = c.out.data(); },
            {"lse at", "overlaps out"}}),
    [](const auto& info) { return info.param.name; });

// Gradients are of keys and values of q's dtype; tests/quantized has the forward pass.
TEST(KeysAndValues, OfAnotherDtypeOrWithScalesHaveNoGradients) {
  struct Unsupported {
    void (*bend)(SmallCall&);
    const char* said;
  };
  for (const auto& [bend, said] :
       {Unsupported{[](SmallCall& c) {
                      c.tensors.k.dtype = c.tensors.v.dtype = c.tensors.dk.dtype =
                          c.tensors.dv.dtype = DType::fp16;
                    },
                    "k.dtype is fp16, q.dtype is fp32: gradients are of k and v of q's dtype"},
        {[](SmallCall& c) { c.tensors.v.dtype = c.tensors.dv.dtype = DType::fp16; },
         "v.dtype is fp16, q.dtype is fp32"},
        {[](SmallCall& c) { c.tensors.k_scale = Tensor::vector(c.q.data(), DType::fp32, 1); },
         "k_scale is given: gradients are of k and v without scales"},
        {[](SmallCall& c) { c.tensors.v_scale = Tensor::vector(c.q.data(), DType::fp32, 1); },
         "v_scale is given"},
        {[](SmallCall& c) { c.tensors.q_scale = Tensor::vector(c.q.data(), DType::fp32, 1); },
         "q_scale is given"}}) {
    SmallCall call;
    call.with_gradients();
    bend(call);
    const Status status = attention_backward(call.tensors, call.options);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << status.message();
    EXPECT_EQ(status.message().find(said), 0U) << status.message();
    EXPECT_TRUE(call.gradients_untouched());
  }
}

TEST(PlanErrors, UnknownDeviceListsTheKnown) {
  const SmallCall call;
  const Status status = attention(call.tensors, call.options, "quantum:0");
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_NE(status.message().find("\"quantum:0\""), std::string::npos);
  EXPECT_NE(status.message().find("\"cpu\""), std::string::npos);
  EXPECT_TRUE(call.untouched());
}

TEST(PlanErrors, ForcedKernelThatCannotRunSaysWhy) {
  SmallCall call;
  call.options.kernel = "cpu.standard.blas";
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.q, &call.tensors.k,
                                                       &call.tensors.v, &call.tensors.out})
    tensor->dtype = DType::fp16;
  const Status status = attention(call.tensors, call.options);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("cpu.standard.blas"), std::string::npos);
  EXPECT_NE(status.message().find("fp16"), std::string::npos) << status.message();
  EXPECT_TRUE(call.untouched());
}

TEST(RunErrors, TensorThatThePlanDoesNotHave) {
  SmallCall call;
  const auto problem = make_problem(call.tensors, call.options);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const auto planned = plan(problem.value(), "cpu", call.options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  AttentionTensors more = call.tensors;
  more.dq.data = call.dq.data();  // a tensor of the other pass
  EXPECT_TRUE(planned->run(nullptr, more, nullptr, 0).ok());
  call.out.assign(call.out.size(), SmallCall::kPoison);
  for (const auto& [name, tensor] :
       {std::pair{"bias", TensorMember<AttentionTensors>(&AttentionTensors::bias)},
        {"keep_mask", &AttentionTensors::keep_mask},
        {"lse", &AttentionTensors::lse},
        {"seqlens_k", &AttentionTensors::seqlens_k}}) {
    more = call.tensors;
    (more->*tensor).data = call.lse.data();
    const Status status = planned->run(nullptr, more, nullptr, 0);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    EXPECT_NE(status.message().find(std::string(name) + ".data is 0x"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("the plan was made without"), std::string::npos)
        << status.message();
    EXPECT_TRUE(call.untouched());
  }
}

TEST(RunErrors, WorkspaceTooSmallOrMisaligned) {
  SmallCall call;
  const auto made = plan(make_problem(call.tensors, call.options).value());
  ASSERT_TRUE(made.ok());
  const std::size_t bytes = made->workspace_bytes();
  ASSERT_GT(bytes, 0U);
  std::vector<char> memory(bytes + 128);
  auto* aligned =
      reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  const Status small = made->run(nullptr, call.tensors, aligned, bytes - 1);
  EXPECT_EQ(small.code(), StatusCode::invalid_argument);
  EXPECT_NE(small.message().find(std::to_string(bytes)), std::string::npos);
  EXPECT_FALSE(made->run(nullptr, call.tensors, aligned + 4, bytes).ok());
  AttentionTensors inside = call.tensors;
  inside.out.data = aligned;
  const Status shared = made->run(nullptr, inside, aligned, bytes);
  EXPECT_EQ(shared.code(), StatusCode::invalid_argument);
  EXPECT_NE(shared.message().find("workspace at"), std::string::npos) << shared.message();
  EXPECT_NE(shared.message().find("overlaps out"), std::string::npos) << shared.message();
  EXPECT_TRUE(call.untouched());
  EXPECT_TRUE(made->run(nullptr, call.tensors, aligned, bytes).ok());
  EXPECT_FALSE(call.untouched());
}

TEST(Empty, NoKeysGiveZeros) {
  SmallCall call;
  call.tensors.lse = {call.lse.data(), DType::fp32, {2, 4, 5, 1}, {20, 5, 1, 1}};
  call.tensors.k.shape[1] = call.tensors.v.shape[1] = 0;
  call.tensors.k.data = call.tensors.v.data = nullptr;  // nothing is read
  ASSERT_TRUE(attention(call.tensors).ok());
  for (const float x : call.out) EXPECT_EQ(x, 0.0F);
  for (const float x : call.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
}

TEST(Empty, BatchAndQueriesOfZeroDoNothing) {
  SmallCall call;
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.q, &call.tensors.k,
                                                       &call.tensors.v, &call.tensors.out})
    tensor->shape[0] = 0;
  EXPECT_TRUE(attention(call.tensors).ok());
  EXPECT_TRUE(call.untouched());
  SmallCall none;
  none.tensors.q.shape[1] = none.tensors.out.shape[1] = 0;
  EXPECT_TRUE(attention(none.tensors).ok());
  EXPECT_TRUE(none.untouched());
}

TEST(Empty, ManySequencesWithoutQueriesInEveryKernel) {
  SmallCall call;
  call.with_everything();
  constexpr int64_t kSequences = 4096;
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.q, &call.tensors.out})
    *tensor = Tensor::bshd(nullptr, DType::fp32, kSequences, 0, 4, 8);
  call.tensors.bias = call.tensors.keep_mask = {};
  call.tensors.lse = Tensor::bhqk(nullptr, DType::fp32, kSequences, 4, 0, 1);
  for (Tensor* tensor : {&call.tensors.k, &call.tensors.v})
    tensor->shape[0] = kSequences, tensor->strides[0] = 0;
  call.options.num_threads = 1;
  const std::vector<std::string> kernels =
      testing::kernels_for(make_problem(call.tensors, call.options).value());
  ASSERT_FALSE(kernels.empty());
  for (const std::string& kernel : kernels) {
    call.options.kernel = kernel;
    const Status status = attention(call.tensors, call.options, "cpu");
    EXPECT_TRUE(status.ok()) << kernel << ": " << status.message();
  }
}

}  // namespace
}  // namespace fulmen
