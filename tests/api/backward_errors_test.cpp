// Every refusal of the backward pass and of dropout names the argument, its value and what is
// accepted, and writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "small_call.h"

namespace fulmen {
namespace {

using testing::Bad;
using testing::SmallCall;

class BackwardErrors : public ::testing::TestWithParam<Bad> {};

TEST_P(BackwardErrors, NameArgumentValueAndWhatIsAccepted) {
  SmallCall call;
  call.with_gradients();
  const SmallCall before = call;
  GetParam().bend(call);
  const Status status = attention_backward(call.tensors, call.options);
  testing::expect_refused(status, GetParam());
  EXPECT_TRUE(call.gradients_untouched());
  EXPECT_TRUE(call.out == before.out && call.lse == before.lse && call.dout == before.dout &&
              call.dlse == before.dlse);
  EXPECT_TRUE(call.q == before.q && call.k == before.k && call.v == before.v &&
              call.bias == before.bias);
}

void only_dout(SmallCall& c) {
  c.tensors.dq = c.tensors.dk = c.tensors.dv = c.tensors.dbias = c.tensors.dsinks = {};
}

INSTANTIATE_TEST_SUITE_P(
    Missing, BackwardErrors,
    ::testing::Values(Bad{"Q", [](SmallCall& c) { c.tensors.q = {}; }, {"q is missing"}},
                      Bad{"Out", [](SmallCall& c) { c.tensors.out = {}; }, {"out is missing"}},
                      Bad{"Lse",
                          [](SmallCall& c) { c.tensors.lse = {}; },
                          {"lse is missing", "the forward pass gave"}},
                      Bad{"Dout",
                          [](SmallCall& c) { c.tensors.dout = {}; },
                          {"dout is missing", "the gradient of out"}},
                      Bad{"Bias",
                          [](SmallCall& c) { c.tensors.bias = {}; },
                          {"dbias is given", "bias is missing"}},
                      Bad{"Sinks",
                          [](SmallCall& c) { c.tensors.sinks = {}; },
                          {"dsinks is given", "sinks is missing"}},
                      Bad{"Gradients", only_dout, {"dq, dk, dv, dbias and dsinks are all missing"}},
                      Bad{"LseData",
                          [](SmallCall& c) { c.tensors.lse.data = nullptr; },
                          {"lse.data is null", "160 bytes"}},
                      Bad{"OutData",
                          [](SmallCall& c) { c.tensors.out.data = nullptr; },
                          {"out.data is null", "bytes"}},
                      Bad{"DoutData",
                          [](SmallCall& c) { c.tensors.dout.data = nullptr; },
                          {"dout.data is null", "bytes"}},
                      Bad{"DkData",
                          [](SmallCall& c) { c.tensors.dk.data = nullptr; },
                          {"dk.data is null", "bytes"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Types, BackwardErrors,
    ::testing::Values(Bad{"Dout",
                          [](SmallCall& c) { c.tensors.dout.dtype = DType::bf16; },
                          {"dout.dtype is bf16", "q.dtype is fp32", "agree"}},
                      Bad{"Dlse",
                          [](SmallCall& c) { c.tensors.dlse.dtype = DType::fp16; },
                          {"dlse.dtype is fp16", "fp32 is needed"}},
                      Bad{"Dq",
                          [](SmallCall& c) { c.tensors.dq.dtype = DType::fp16; },
                          {"dq.dtype is fp16", "q.dtype is fp32"}},
                      Bad{"Dk",
                          [](SmallCall& c) { c.tensors.dk.dtype = DType::bf16; },
                          {"dk.dtype is bf16", "agree"}},
                      Bad{"Dv",
                          [](SmallCall& c) { c.tensors.dv.dtype = static_cast<DType>(19); },
                          {"dv.dtype is 19", "agree"}},
                      Bad{"Dbias",
                          [](SmallCall& c) { c.tensors.dbias.dtype = DType::boolean; },
                          {"dbias.dtype is boolean", "fp32, fp16 and bf16"}},
                      Bad{"Dsinks",
                          [](SmallCall& c) { c.tensors.dsinks.dtype = DType::bf16; },
                          {"dsinks.dtype is bf16", "fp32 is needed"}},
                      Bad{"Dropout",
                          [](SmallCall& c) { c.options.dropout = 1.0F; },
                          {"dropout is 1:", "0 (off) or above and below 1"}},
                      Bad{"NegativeDropout",
                          [](SmallCall& c) { c.options.dropout = -0.25F; },
                          {"dropout is -0.25", "below 1"}},
                      Bad{"NanDropout",
                          [](SmallCall& c) { c.options.dropout = NAN; },
                          {"dropout is nan", "below 1"}},
                      // A name that no kernel has; a kernel of the other pass is `unsupported`,
                      // below.
                      Bad{"ForwardKernel",
                          [](SmallCall& c) { c.options.kernel = "cpu.backward.abacus"; },
                          {"kernel is \"cpu.backward.abacus\"",
                           "did you mean \"cpu.backward.scalar\""}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Shapes, BackwardErrors,
    ::testing::Values(Bad{"Dout",
                          [](SmallCall& c) { c.tensors.dout.shape[1] = 4; },
                          {"dout.shape", "4", "[batch, seqlen_q, num_heads, head_dim_v]"}},
                      Bad{"DoutStrides",
                          [](SmallCall& c) { c.tensors.dout.strides[3] = 2; },
                          {"dout.strides", "2", "contiguous, stride 1"}},
                      Bad{"Dlse",
                          [](SmallCall& c) { c.tensors.dlse.shape[2] = 6; },
                          {"dlse.shape", "6", "[batch, num_heads, seqlen_q, 1]"}},
                      Bad{"Dq",
                          [](SmallCall& c) { c.tensors.dq.shape[2] = 2; },
                          {"dq.shape", "2", "[batch, seqlen_q, num_heads, head_dim]"}},
                      Bad{"Dk",
                          [](SmallCall& c) { c.tensors.dk.shape[2] = 4; },
                          {"dk.shape", "4", "[batch, seqlen_k, num_kv_heads, head_dim]"}},
                      Bad{"Dv",
                          [](SmallCall& c) { c.tensors.dv.shape[3] = 7; },
                          {"dv.shape", "7", "head_dim_v]"}},
                      Bad{"Dbias",
                          [](SmallCall& c) { c.tensors.dbias.shape[2] = 3; },
                          {"dbias.shape", "3", "each dim but the last may be 1"}},
                      Bad{"DbiasKeys",
                          [](SmallCall& c) { c.tensors.dbias.shape[3] = 1; },
                          {"dbias.shape", "each dim but the last may be 1"}},
                      Bad{"Dsinks",
                          [](SmallCall& c) { c.tensors.dsinks.shape[3] = 5; },
                          {"dsinks.shape", "5", "[1, 1, 1, num_heads]"}},
                      Bad{"NegativeStride",
                          [](SmallCall& c) { c.tensors.dv.strides[1] = -8; },
                          {"dv.strides", "-8", "negative"}},
                      Bad{"HugeStride",
                          [](SmallCall& c) { c.tensors.dq.strides[0] = INT64_MAX; },
                          {"dq with shape", "more memory"}},
                      Bad{"DkItself",
                          [](SmallCall& c) { c.tensors.dk.strides[1] = 0; },
                          {"dk with shape", "overlaps itself", "its own place"}},
                      Bad{"DbiasItself",
                          [](SmallCall& c) { c.tensors.dbias.strides[0] = 0; },
                          {"dbias with shape", "overlaps itself"}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Overlaps, BackwardErrors,
    ::testing::Values(Bad{"DqQ",
                          [](SmallCall& c) { c.tensors.dq.data = c.q.data() + 3; },
                          {"dq at", "overlaps q", "memory of their own"}},
                      Bad{"DkOut",
                          [](SmallCall& c) { c.tensors.dk.data = c.out.data(); },
                          {"dk at", "overlaps out"}},
                      Bad{"DqDout",
                          [](SmallCall& c) { c.tensors.dq.data = c.dout.data(); },
                          {"dq at", "overlaps dout"}},
                      Bad{"DvDk",
                          [](SmallCall& c) { c.tensors.dv.data = c.dk.data() + 2; },
                          {"dv at", "overlaps dk"}},
                      Bad{"DbiasBias",
                          [](SmallCall& c) { c.tensors.dbias.data = c.bias.data(); },
                          {"dbias at", "overlaps bias"}},
                      Bad{"DsinksSinks",
                          [](SmallCall& c) { c.tensors.dsinks.data = c.heads.data(); },
                          {"dsinks at", "overlaps"}},
                      Bad{"DsinksDlse",
                          [](SmallCall& c) { c.tensors.dsinks.data = c.dlse.data(); },
                          {"dsinks at", "overlaps dlse"}},
                      Bad{"MisalignedDq",
                          [](SmallCall& c) {
                            c.tensors.dq.data = reinterpret_cast<char*>(c.dq.data()) + 2;
                          },
                          {"dq.data is 0x", "divisible by the 4 bytes"}}),
    [](const auto& info) { return info.param.name; });

TEST(BackwardErrors, KernelsOfTheOtherPassSaySo) {
  SmallCall call;
  call.with_gradients();
  call.options.kernel = "cpu.reference.double";
  const Status status = attention_backward(call.tensors, call.options);
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("it computes the forward pass"), std::string::npos)
      << status.message();
  call.options.kernel = "cpu.reference.backward";
  EXPECT_NE(attention(call.tensors, call.options).message().find("it computes gradients"),
            std::string::npos);
  EXPECT_TRUE(call.gradients_untouched());
}

TEST(BackwardErrors, ForwardRefusesBadDropout) {
  SmallCall call;
  call.options.dropout = 1.5F;
  const Status status = attention(call.tensors, call.options);
  EXPECT_EQ(status.message(),
            "dropout is 1.5: a probability, 0 (off) or above and below 1, is needed");
  EXPECT_TRUE(call.untouched());
}

TEST(BackwardEmpty, NoQueriesGiveZeroKeyGradients) {
  SmallCall call;
  call.with_gradients();
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.q, &call.tensors.out,
                                                       &call.tensors.dout, &call.tensors.dq}) {
    tensor->shape[1] = 0;
  }
  for (Tensor* tensor : std::initializer_list<Tensor*>{&call.tensors.lse, &call.tensors.dlse,
                                                       &call.tensors.bias, &call.tensors.dbias}) {
    tensor->shape[2] = 0;
  }
  const Status status = attention_backward(call.tensors, call.options);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const std::vector<float>* zeros : {&call.dk, &call.dv, &call.dsinks}) {
    for (const float x : *zeros) EXPECT_EQ(x, 0.0F);
  }
  EXPECT_TRUE(SmallCall::poisoned(call.dq) && SmallCall::poisoned(call.dbias));
}

}  // namespace
}  // namespace fulmen
