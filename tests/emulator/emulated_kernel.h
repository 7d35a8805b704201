// A kernel from text, compiled for the host and run on an emulated chip.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "fulmen/status.h"
#include "gpu/compile/toolchains/compiler.h"

namespace fulmen::testing {

// Memory of the emulated device.
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t bytes);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

struct KernelText {
  std::string arch = "gfx1100";
  std::string body;       // void kernel(const Arguments& a) {...} and what it needs; Arguments {
                          // float* x; }
  std::string headers{};  // more #include lines
  int workgroup_size = 32;
  int lds_bytes = 256;
  bool programmatic_launch = false;
  int cluster = 1;  // workgroups that share one
};

// Text for Hopper, of two waves.
KernelText sm90_text(std::string body, int lds_bytes);

// Compiles, loads and launches `workgroups` of a kernel with that many bytes of LDS and an argument
// block.
Status run_request(const gpu::CompileRequest& request, int lds_bytes, const void* arguments,
                   std::size_t bytes, int64_t workgroups, bool programmatic_launch = false);

// The same for text, with x.
Status run_text(const KernelText& text, void* x, int workgroups = 1);

// A change that makes a kernel break a rule that it kept, and the emulator's report.
struct Change {
  const char* name;
  const char* from;
  const char* to;
  const char* report;
};
// Runs `text` with the change, and expects the report's words in the message that it returns.
std::string expect_report(KernelText text, const Change& change, void* x, int workgroups = 1);

}  // namespace fulmen::testing
