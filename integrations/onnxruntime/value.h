// Tensors of ONNX Runtime as a node sees them, and the errors that name them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/fulmen_c.h"
#include "onnxruntime_c_api.h"

namespace fulmen_ort {

// OrtApi of the version that the headers have; set once, when ORT loads the library.
extern const OrtApi* ort;

// Ends a run with "Fulmen: <words>".
[[noreturn]] void fail(const std::string& words);
// Ends a run with ORT's own words where a call of its API failed.
void check(OrtStatus* status);
// For questions whose failure is an answer: whether a call of ORT's API succeeded.
bool succeeded(OrtStatus* status);
// "[2, 1, 8]".
std::string text_of(const std::vector<int64_t>& dims);

// An input or output: no data and no dims where the node leaves it out.
struct Value {
  const char* name = "";  // the operator's own
  void* data = nullptr;
  int32_t dtype = -1;  // fulmen_dtype
  std::vector<int64_t> dims;
  bool present() const { return dtype >= 0; }
  int64_t elements() const;
  // Ends the run unless the dims are these; `meaning` says what each is.
  void expect(const std::vector<int64_t>& accepted, const char* meaning) const;
  // "<name> is <dims>; <accepted> is accepted".
  [[noreturn]] void refuse(const std::string& accepted) const;
};

int32_t dtype_of(ONNXTensorElementDataType type, const char* name);
std::size_t bytes_of(int32_t dtype);

// [batch, seqlen, heads, head_dim] of what is [batch, heads, seqlen, head_dim] in memory, or of
// [batch, seqlen, heads * head_dim].
fulmen_tensor as_heads(const Value& value, int64_t heads);
// A mask or bias that broadcasts to [batch, heads, queries, keys] from behind.
fulmen_tensor as_bias(const Value& value);

}  // namespace fulmen_ort
