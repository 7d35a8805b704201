// Structs of callers that know less or more than the library, and tensors from the C ABI's
// functions.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "c_views.h"
#include "fulmen/fulmen_c.h"
#include "small_call.h"

namespace fulmen::testing {
namespace {

constexpr std::size_t kMore = 32;

// A struct of a later version: the known one with more fields at its end.
template <class Struct>
struct Later {
  Struct known;
  unsigned char more[kMore];
};

bool said(const char* text) { return std::strstr(fulmen_last_error(), text) != nullptr; }

TEST(CStructSize, LargerStructsAreTakenWhereTheRestIsZero) {
  SmallCall call;
  Later<fulmen_tensors> tensors{views(call), {}};
  Later<fulmen_options> options{};
  fulmen_options_init(&options.known);
  tensors.known.struct_size = sizeof tensors;
  options.known.struct_size = sizeof options;
  ASSERT_EQ(fulmen_attention(&tensors.known, &options.known, "cpu"), FULMEN_OK)
      << fulmen_last_error();
  EXPECT_FALSE(call.untouched());

  call.out.assign(call.out.size(), SmallCall::kPoison);
  options.more[kMore - 1] = 7;
  EXPECT_EQ(fulmen_attention(&tensors.known, &options.known, "cpu"), FULMEN_INVALID_ARGUMENT);
  const std::string given = std::to_string(sizeof options),
                    known = std::to_string(sizeof(fulmen_options));
  EXPECT_TRUE(said(("options.struct_size is " + given + " and byte " +
                    std::to_string(sizeof options - 1) + " of it is 7")
                       .c_str()))
      << fulmen_last_error();
  EXPECT_TRUE(said(("knows " + known + " bytes").c_str())) << fulmen_last_error();

  options.more[kMore - 1] = 0;
  tensors.more[0] = 1;
  EXPECT_EQ(fulmen_attention(&tensors.known, &options.known, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(said("tensors.struct_size is ")) << fulmen_last_error();
  EXPECT_TRUE(call.untouched());
}

TEST(CStructSize, ASizeThatNoStructHasIsRefusedUnread) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  fulmen_options options;
  fulmen_options_init(&options);
  for (const std::size_t size : {std::size_t{0}, std::size_t{9}, std::size_t{1} << 20U,
                                 std::numeric_limits<std::size_t>::max() - 7}) {
    options.struct_size = size;
    EXPECT_EQ(fulmen_attention(&t, &options, "cpu"), FULMEN_INVALID_ARGUMENT) << size;
    EXPECT_TRUE(said(("options.struct_size is " + std::to_string(size)).c_str()))
        << fulmen_last_error();
  }
  fulmen_problem_info info{};
  info.struct_size = std::size_t{1} << 40U;
  EXPECT_EQ(fulmen_describe(&t, nullptr, &info), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(said("info.struct_size is 1099511627776")) << fulmen_last_error();
}

TEST(CStructSize, FilledStructsHaveZerosWhereTheLibraryKnowsNothing) {
  SmallCall call;
  const fulmen_tensors t = views(call);
  Later<fulmen_problem_info> info;
  std::memset(&info, 0xA5, sizeof info);
  info.known.struct_size = sizeof info;
  ASSERT_EQ(fulmen_describe(&t, nullptr, &info.known), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(info.known.struct_size, sizeof info);
  EXPECT_GT(info.known.flops, 0);
  for (const unsigned char byte : info.more) EXPECT_EQ(byte, 0);
}

TEST(CStructSize, ReservedWordsOfATensorAreZero) {
  SmallCall call;
  fulmen_tensors t = views(call);
  t.v.reserved[1] = 3;
  EXPECT_EQ(fulmen_attention(&t, nullptr, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(said("v.reserved[1] is 3: 0 is accepted")) << fulmen_last_error();
  t = views(call);
  t.q_scale.reserved[0] = 1;  // the table's last
  EXPECT_EQ(fulmen_attention(&t, nullptr, "cpu"), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(said("q_scale.reserved[0] is 1")) << fulmen_last_error();
  EXPECT_TRUE(call.untouched());

  fulmen_kv_cache cache;
  fulmen_kv_cache_init(&cache);
  cache.seqlens_k_out.reserved[0] = 9;
  EXPECT_EQ(fulmen_append_kv_check(&cache), FULMEN_INVALID_ARGUMENT);
  EXPECT_TRUE(said("seqlens_k_out.reserved[0] is 9")) << fulmen_last_error();
}

void expect_same(const fulmen_tensor& c, const Tensor& cpp) {
  const fulmen_tensor want = view(cpp);
  EXPECT_EQ(c.data, want.data);
  EXPECT_EQ(c.dtype, want.dtype);
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(c.shape[d], want.shape[d]) << d;
    if (c.shape[d] > 1) {  // else it does not matter
      EXPECT_EQ(c.strides[d], want.strides[d]) << d;
    }
  }
  EXPECT_EQ(c.reserved[0], 0U);
  EXPECT_EQ(c.reserved[1], 0U);
}

TEST(CTensors, AreWhatTensorsOfCppAre) {
  float data[1] = {};
  const float* constant = data;
  expect_same(fulmen_tensor_bshd(constant, FULMEN_FP32, 2, 3, 4, 5),
              Tensor::bshd(data, DType::fp32, 2, 3, 4, 5));
  expect_same(fulmen_tensor_bhsd(constant, FULMEN_BF16, 2, 3, 4, 5),
              Tensor::bhsd(data, DType::bf16, 2, 3, 4, 5));
  expect_same(fulmen_tensor_bhqk(constant, FULMEN_FP16, 2, 1, 4, 5),
              Tensor::bhqk(data, DType::fp16, 2, 1, 4, 5));
  EXPECT_EQ(fulmen_tensor_bhqk(constant, FULMEN_FP16, 2, 1, 4, 5).strides[1], 0);
  expect_same(fulmen_tensor_1d(constant, FULMEN_FP32, 7),
              {data, DType::fp32, {1, 1, 1, 7}, {0, 0, 0, 1}});
  expect_same(fulmen_tensor_2d(constant, FULMEN_INT32, 3, 7),
              {data, DType::int32, {1, 1, 3, 7}, {0, 0, 7, 1}});
  EXPECT_EQ(fulmen_tensor_1d(constant, FULMEN_FP32, 1).strides[3], 1);
  constexpr int64_t kHuge = int64_t{1} << 40U;
  expect_same(fulmen_tensor_bshd(constant, FULMEN_FP32, kHuge, kHuge, kHuge, kHuge),
              Tensor::bshd(data, DType::fp32, kHuge, kHuge, kHuge, kHuge));
}

// Every tensor that a call may have, const, made by the functions alone.
TEST(CTensors, ServeACall) {
  SmallCall cpp, c;
  for (SmallCall* call : {&cpp, &c}) {
    call->with_everything();
    call->vary();
  }
  ASSERT_TRUE(attention(cpp.tensors).ok());
  using S = SmallCall;
  const SmallCall& in = c;
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  t.q = fulmen_tensor_bshd(in.q.data(), FULMEN_FP32, S::kBatch, S::kSeqlenQ, S::kHeads, S::kDim);
  t.k = fulmen_tensor_bshd(in.k.data(), FULMEN_FP32, S::kBatch, S::kSeqlenK, S::kKvHeads, S::kDim);
  t.v = fulmen_tensor_bshd(in.v.data(), FULMEN_FP32, S::kBatch, S::kSeqlenK, S::kKvHeads, S::kDim);
  t.out = fulmen_tensor_bshd(c.out.data(), FULMEN_FP32, S::kBatch, S::kSeqlenQ, S::kHeads, S::kDim);
  t.bias = fulmen_tensor_bhqk(in.bias.data(), FULMEN_FP32, S::kBatch, S::kHeads, S::kSeqlenQ,
                              S::kSeqlenK);
  t.keep_mask = fulmen_tensor_bhqk(in.keep.data(), FULMEN_BOOLEAN, S::kBatch, 1, 1, S::kSeqlenK);
  t.alibi_slopes = t.sinks = fulmen_tensor_1d(in.heads.data(), FULMEN_FP32, S::kHeads);
  t.lse = fulmen_tensor_bhqk(c.lse.data(), FULMEN_FP32, S::kBatch, S::kHeads, S::kSeqlenQ, 1);
  ASSERT_EQ(fulmen_attention(&t, nullptr, nullptr), FULMEN_OK) << fulmen_last_error();
  EXPECT_EQ(c.out, cpp.out);
  EXPECT_EQ(c.lse, cpp.lse);
}

}  // namespace
}  // namespace fulmen::testing
