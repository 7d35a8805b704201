// The table of tensors has all of them, each once, in C++ and in C.
#include "fulmen/tensor_fields.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

#include "api/c/translation.h"
#include "fulmen/fulmen.h"

namespace fulmen::testing {
namespace {

template <class Whole, class Part>
std::ptrdiff_t offset_of(const Whole& whole, const Part& part) {
  return reinterpret_cast<const std::byte*>(&part) - reinterpret_cast<const std::byte*>(&whole);
}

TEST(TensorFields, AreAllOfACall) {
  const AttentionTensors tensors;
  const Problem problem;
  fulmen_tensors c{};
  std::set<std::ptrdiff_t> calls, specs, views;
  std::set<std::string> names;
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[static_cast<std::size_t>(i)];
    EXPECT_STREQ(c_api::kCTensors[i].name, field.name);
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(calls.insert(offset_of(tensors, tensors->*field.tensor)).second) << field.name;
    EXPECT_TRUE(specs.insert(offset_of(problem, problem.*field.spec)).second) << field.name;
    EXPECT_TRUE(views.insert(offset_of(c, c.*c_api::kCTensors[i].tensor)).second) << field.name;
  }
  // A tensor that is added to a struct, and not to the table, makes the struct larger than the
  // table says.
  EXPECT_EQ(sizeof(AttentionTensors),
            kTensorFields * sizeof(Tensor) + sizeof(tensors.dropout_seed) +
                sizeof(tensors.dropout_offset) + sizeof(tensors.function_tensors));
  EXPECT_EQ(sizeof c, sizeof(c.struct_size) + kTensorFields * sizeof(fulmen_tensor) +
                          sizeof(c.dropout_seed) + sizeof(c.dropout_offset) +
                          sizeof(c.function_tensors) + sizeof(c.num_function_tensors));
}

TEST(TensorFields, SayShapesOfAProblem) {
  Problem p;
  p.batch = 2, p.seqlen_q = 3, p.seqlen_k = 5, p.num_heads = 8, p.num_kv_heads = 4, p.head_dim = 16,
  p.head_dim_v = 32;
  const auto field = [](const std::string& name) {
    for (const TensorField& one : kTensorTable) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << name;
    return kTensorTable[0];
  };
  using Shape = Problem::Shape;
  EXPECT_EQ(field("dv").shape(p), (Shape{2, 5, 4, 32}));
  EXPECT_STREQ(field("dv").dims(p), "[batch, seqlen_k, num_kv_heads, head_dim_v]");
  EXPECT_EQ(field("bias").shape(p), (Shape{2, 8, 3, 5}));
  EXPECT_EQ(field("alibi_slopes").shape(p), (Shape{2, 1, 1, 8}));
  EXPECT_EQ(field("v_scale").shape(p), (Shape{2, 1, 1, 4}));
  EXPECT_EQ(field("cu_seqlens_q").shape(p), (Shape{1, 1, 1, 3}));
  EXPECT_TRUE(field("lse").written[0] && !field("lse").read[0] && field("lse").read[1] &&
              !field("lse").written[1]);
  p.cu_seqlens_q.present = true;
  p.total_q = 7;
  EXPECT_EQ(field("q").shape(p), (Shape{1, 7, 8, 16}));
  EXPECT_STREQ(field("q").dims(p), "[1, total_q, num_heads, head_dim]");
}

// A problem's text names every optional tensor that it has.
TEST(TensorFields, AreSaidInTheProblemsText) {
  for (const TensorField& field : kTensorTable) {
    const std::string name = field.name;
    if (name == "q" || name == "k" || name == "v" || name == "out" || name == "dout") continue;
    Problem p;
    p.pass = field.read[0] || field.written[0] ? Pass::forward : Pass::backward;
    const std::string without = to_string(p);
    (p.*field.spec).present = true;
    EXPECT_NE(to_string(p), without) << name;
  }
}

// A member of the C struct becomes the C++ struct's member of the same name.
TEST(TensorFields, PairBothStructs) {
  fulmen_tensors c;
  fulmen_tensors_init(&c);
  int marks[3];
  c.q.data = &marks[0];
  c.leftpad_k.data = &marks[1];
  c.dbias.data = &marks[2];
  const auto tensors = c_api::to_cpp(&c);
  ASSERT_TRUE(tensors.ok());
  EXPECT_EQ(tensors.value().q.data, &marks[0]);
  EXPECT_EQ(tensors.value().leftpad_k.data, &marks[1]);
  EXPECT_EQ(tensors.value().dbias.data, &marks[2]);
}

}  // namespace
}  // namespace fulmen::testing
