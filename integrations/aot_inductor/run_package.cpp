// Runs a package of AOTInductor without Python: `program OPERATORS PACKAGE INPUTS OUTPUT`. INPUTS
// is what torch.save writes of a list of tensors; OUTPUT is the first result's floats.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

int main(int, char** arguments) {
  if (::dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return 1;
  }
  torch::inductor::AOTIModelPackageLoader loader(arguments[2]);
  std::ifstream file(arguments[3], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<at::Tensor> inputs;
  const c10::IValue list = torch::jit::pickle_load(bytes);
  for (const c10::IValue& one : list.toListRef()) inputs.push_back(one.toTensor());
  const at::Tensor out = loader.run(inputs).at(0).contiguous();
  std::ofstream(arguments[4], std::ios::binary)
      .write(static_cast<const char*>(out.data_ptr()), static_cast<std::streamsize>(out.nbytes()));
}
