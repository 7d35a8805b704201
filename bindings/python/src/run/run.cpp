#include "run/run.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "functions/functions.h"
#include "platform/system.h"
#include "run/device_copies.h"
#include "run/plan_cache.h"

namespace fulmen::python {
namespace {

struct DestroyPlan {
  void operator()(fulmen_plan* plan) const { fulmen_plan_destroy(plan); }
};
using Plan = std::unique_ptr<fulmen_plan, DestroyPlan>;

const size_t kMostKept = std::min<size_t>(std::max(1U, std::thread::hardware_concurrency()), 64)
                         << 20;  // of a workspace

// Scratch is kept, as fresh memory costs a page fault for every 4 KiB. The limit is the tiles of
// each thread: the extra workspace of a long backward pass would add to all that a training step
// keeps. malloc keeps that ready for the next call, and for tensors meanwhile.
void* host_workspace(size_t bytes) {
  struct Free {
    void operator()(void* memory) const { free_aligned(memory); }
  };
  thread_local std::unique_ptr<void, Free> kept;
  thread_local size_t kept_bytes = 0;
  // Beyond that Plan::run takes it for the call.
  if (bytes == 0 || bytes > kMostKept) return nullptr;
  if (bytes > kept_bytes) {
    kept.reset();
    kept_bytes = 0;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    kept.reset(aligned_memory(64, rounded));
    if (kept) kept_bytes = rounded;
  }
  return kept.get();
}

// Copies what functions of scores read, and their gradients; the rows then are in copied.
int copy_functions(fulmen_tensors& tensors, std::vector<fulmen_function_tensor>& copied,
                   DeviceCopies& copies) {
  const fulmen_function_tensor* first = tensors.function_tensors;
  copied.assign(first, first + tensors.num_function_tensors);
  tensors.function_tensors = copied.empty() ? nullptr : copied.data();
  for (fulmen_function_tensor& one : copied) {
    if (const int status = copies.add(one.tensor, false); status != FULMEN_OK) return status;
    if (const int status = copies.add(one.gradient, true); status != FULMEN_OK) return status;
  }
  for (const auto& list : kBlockLists) {
    if (const int status = copies.add(tensors.*list.member, false); status != FULMEN_OK)
      return status;
  }
  return FULMEN_OK;
}

int run_on_copies(Pass pass, const fulmen_plan* plan, fulmen_tensors tensors,
                  const fulmen_options& options) {
  const auto check_sequences =
      pass == Pass::forward ? fulmen_check_sequences : fulmen_check_sequences_backward;
  if (const int status = check_sequences(&tensors, &options); status != FULMEN_OK) return status;
  DeviceCopies copies(fulmen_plan_device(plan));
  for (int at = 0; at < kPlaces; ++at) {
    const auto place = static_cast<Place>(at);
    const int status =
        copies.add(tensors.*kTensors[at].member, is_written(place, pass == Pass::backward));
    if (status != FULMEN_OK) return status;
  }
  std::vector<fulmen_function_tensor> of_functions;
  if (const int status = copy_functions(tensors, of_functions, copies); status != FULMEN_OK)
    return status;
  const int status = fulmen_plan_run(plan, nullptr, &tensors, nullptr, 0);
  return status == FULMEN_OK ? copies.give_back() : status;
}

}  // namespace

int run_on_host(Pass pass, const fulmen_plan* plan, const fulmen_tensors& tensors,
                const fulmen_options& options) {
  if (is_emulated(fulmen_plan_device(plan))) return run_on_copies(pass, plan, tensors, options);
  const size_t bytes = fulmen_plan_workspace_bytes(plan);
  void* workspace = host_workspace(bytes);
  return fulmen_plan_run(plan, nullptr, &tensors, workspace, workspace != nullptr ? bytes : 0);
}

void run(Pass pass, const Call& call) {
  if (const std::string copies = call.copies(); !copies.empty()) {
    if (environment_flag("FLASH_ATTENTION_DEBUG"))
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
      if (status == FULMEN_OK) status = run_on_host(pass, made, call.tensors, call.options);
    }
    return check(status, call);
  }
  // Between planning and running the framework is asked for memory, which takes the GIL.
  uint32_t places = 0;
  for (int place = 0; place < kPlaces; ++place)
    places |= static_cast<uint32_t>(call.has(static_cast<Place>(place))) << place;
  const SharedPlan plan = find_or_make_plan(
      {pass, call.tensors, places, call.options, call.device_name()}, true, status);
  check(status, call);
  const size_t bytes = fulmen_plan_workspace_bytes(plan.get());
  const Workspace workspace = new_workspace(call.objects[kQ], q, bytes);
  void* stream = stream_of(q);
  {
    nb::gil_scoped_release no_gil;
    status = fulmen_plan_run(plan.get(), stream, &call.tensors, workspace.address,
                             workspace.address != nullptr ? bytes : 0);
  }
  check(status, call);
}

namespace {

int zero_rows(Pass pass, const fulmen_tensors& tensors, const fulmen_options& options,
              const char* device, void* stream) {
  const auto zero =
      pass == Pass::forward ? fulmen_zero_unused_rows : fulmen_zero_unused_rows_backward;
  return zero(&tensors, &options, device, stream);
}

}  // namespace

int zero_unused_rows_on_host(Pass pass, const fulmen_tensors& tensors,
                             const fulmen_options& options) {
  // Whatever device has computed the others.
  return zero_rows(pass, tensors, options, "cpu", nullptr);
}

void zero_unused_rows(Pass pass, const Call& call) {
  if (!call.layout.packed_q && !call.layout.packed_k) return;
  const Array& q = call.arrays[kQ];
  void* stream = stream_of(q);
  int status = FULMEN_OK;
  {
    nb::gil_scoped_release no_gil;
    status = on_host(q) ? zero_unused_rows_on_host(pass, call.tensors, call.options)
                        : zero_rows(pass, call.tensors, call.options, call.device_name(), stream);
  }
  check(status, call);
}

}  // namespace fulmen::python
