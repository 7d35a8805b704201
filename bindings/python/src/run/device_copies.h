// Arrays of the host on an emulated device, which has memory of its own: copied there before a
// call, and back.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/fulmen_c.h"

namespace fulmen::python {

// Returns true if that device is emulated; null or "" is the default one.
bool is_emulated(const char* device);

// Copies of tensors in a device's memory, as long as this lives. Functions return a fulmen_status.
class DeviceCopies {
 public:
  explicit DeviceCopies(std::string device) : device_(std::move(device)) {}
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // The tensor's data becomes that of a copy. Absent and empty tensors are at null. Tensors share a
  // copy where they begin at one address and are both read, or both written: v as a view of k
  // stays one.
  int add(fulmen_tensor& tensor, bool written);
  // The elements of tensors that are written, back to the host.
  int give_back() const;

 private:
  struct Copy {
    fulmen_tensor host;
    void* data;
    bool written;
  };
  std::string device_;
  std::vector<void*> memory_;
  std::vector<Copy> copies_;
};

}  // namespace fulmen::python
