#include "run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "plan_cache.h"

namespace fulmen::python {
namespace {

struct DestroyPlan {
  void operator()(fulmen_plan* plan) const { fulmen_plan_destroy(plan); }
};
using Plan = std::unique_ptr<fulmen_plan, DestroyPlan>;

}  // namespace

// Kept, as fresh memory costs a page fault for every 4 KiB of it. Not beyond the tiles of each thread: what a long backward pass
// adds to them would stand beside all that a training step keeps. malloc has it ready for the next call, and for tensors meanwhile.
void* host_workspace(size_t bytes) {
  static const size_t kMostKept = std::min<size_t>(std::max(1U, std::thread::hardware_concurrency()), 64) << 20;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Free> kept;
  thread_local size_t kept_bytes = 0;
  // Beyond that Plan::run takes it for the call. For no bytes no address: on an emulated device this memory would be refused.
  if (bytes == 0 || bytes > kMostKept) return nullptr;
  if (bytes > kept_bytes) {
    kept.reset();
    kept_bytes = 0;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    kept.reset(std::aligned_alloc(64, rounded));
    if (kept) kept_bytes = rounded;
  }
  return kept.get();
}

void run(Pass pass, const Call& call) {
  if (const std::string copies = call.copies(); !copies.empty()) {
    const char* debug = ::secure_getenv("FLASH_ATTENTION_DEBUG");
    if (debug != nullptr && *debug != '\0' && std::strcmp(debug, "0") != 0)
      std::fprintf(stderr, "fulmen:%s\n", copies.substr(2).c_str());
  }
  const Array& q = call.arrays[kQ];
  int status = FULMEN_OK;
  if (on_host(q)) {
    {
      nb::gil_scoped_release no_gil;
      const auto create = pass == Pass::forward ? fulmen_plan_create : fulmen_plan_create_backward;
      fulmen_plan* made = nullptr;
      status = create(&call.tensors, &call.options, call.device_name(), &made);
      const Plan plan(made);
      if (status == FULMEN_OK) {
        const size_t bytes = fulmen_plan_workspace_bytes(made);
        void* workspace = host_workspace(bytes);
        status = fulmen_plan_run(made, nullptr, &call.tensors, workspace, workspace != nullptr ? bytes : 0);
      }
    }
    return check(status, call);
  }
  // Between planning and running the framework is asked for memory, which takes the GIL.
  const SharedPlan plan = find_or_make_plan(pass, call, status);
  check(status, call);
  const size_t bytes = fulmen_plan_workspace_bytes(plan.get());
  const Workspace workspace = new_workspace(call.objects[kQ], q, bytes);
  void* stream = stream_of(q);
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_plan_run(plan.get(), stream, &call.tensors, workspace.address, workspace.address != nullptr ? bytes : 0);
  }
  check(status, call);
}

}  // namespace fulmen::python
