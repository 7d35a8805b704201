// The backends of this process, built-in ones first.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/backend.h"

namespace fulmen {

using BackendList = std::vector<std::shared_ptr<const Backend>>;

// A snapshot: immutable, so that planning takes no lock while it asks kernels.
std::shared_ptr<const BackendList> backend_list();

// The backend of a device's name ("cuda:0" belongs to "cuda"), or null.
std::shared_ptr<const Backend> backend_of(std::string_view device);

// The backend's devices; of one of the user's that throws, one that cannot be used and says so.
std::vector<DeviceInfo> devices_of(const Backend& backend);

// May the kernel run this problem on this device: its own answer, after what any kernel is asked
// (pass, dropout, deterministic).
Support support_of(const Kernel& kernel, const Problem& problem, const std::string& device);

// Error for a device that no backend has, or that cannot be used, with what there is.
Status check_device(std::string_view device);

// The backend of a device that can be used, else check_device()'s error.
Result<std::shared_ptr<const Backend>> usable_backend_of(std::string_view device);

// The one place where backends that come with the library are listed:
// src/plan/builtin_backends.cpp.
BackendList builtin_backends();

}  // namespace fulmen
