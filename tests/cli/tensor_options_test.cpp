// Each optional input of a call is an option of the program, but for a block mask, whose lists a
// program makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "fulmen/tensor_fields.h"
#include "tools/options/vector_files.h"

namespace fulmen::tools {
namespace {

TEST(TensorOptions, AreAllInputs) {
  for (const TensorField& field : kTensorTable) {
    const std::string name = field.name;
    if (!field.read[0] || name == "q" || name == "k" || name == "v" || name == "bias" ||
        name == "keep_mask" || name.find("kv_num_blocks") != std::string::npos ||
        name.find("kv_indices") != std::string::npos)
      continue;
    EXPECT_TRUE(std::any_of(kVectorFiles.begin(), kVectorFiles.end(), [&](const VectorFile& file) {
      return TensorMember<AttentionTensors>(file.tensor) == field.tensor;
    })) << name;
  }
}

}  // namespace
}  // namespace fulmen::tools
