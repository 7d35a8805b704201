// time_ours ARCH PASS HEAD_DIM SEQLEN CAUSAL TIMES [KERNEL]: the timeline of our kernels of one
// head, as run_kernel gives it for others' (bench/amd/README.md). PASS: forward, backward; latent:
// decode of one sequence of latent attention, whose query heads stand in HEAD_DIM's place. CAUSAL:
// 0, 1. TIMES: how many heads and sequences the whole problem has. KERNEL: not the chosen one.
// Prints JSON.
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "bench/amd/run_kernel/timeline.h"
#include "fulmen/printable.h"
#include "gpu/drivers/isa/driver.h"
#include "tools/tensors/device_tensors.h"
#include "tools/verify/grid.h"
#include "tools/verify/verified_run.h"

namespace {

using namespace fulmen;
using nlohmann::ordered_json;

tools::GridCase one_head(std::span<char*> words) {
  tools::GridCase c;
  c.dtype = DType::bf16;
  c.head_dim = c.head_dim_v = std::atoll(words[2]);
  c.seqlen_q = c.seqlen_k = std::atoll(words[3]);
  if (std::string(words[1]) == "latent") {
    c.heads = std::atoll(words[2]);
    c.seqlen_q = 1;
    c.head_dim = 576;
    c.head_dim_v = 512;
  }
  if (std::string(words[4]) == "1") c.feature = tools::Feature::causal;
  if (std::string(words[1]) == "backward") c.pass = Pass::backward;
  return c;
}

Status run(std::span<char*> words) {
  const std::string device = fmt::format("emulated-isa:{}", words[0]);
  const double times = std::atof(words[5]);
  const std::string kernel = words.size() > 6 ? words[6] : "";
  tools::NormalPool pool(1);
  const tools::GridCase c = one_head(words);
  tools::GridData data = tools::make_grid_data(c, pool);
  if (std::string(words[1]) == "latent") {  // v is the first dims of k
    data.tensors.v.data = data.tensors.k.data;
    data.tensors.v.strides = data.tensors.k.strides;
    data.options.tuning = "num_splits=1";
  }
  const Result<Problem> problem = tools::problem_of(c, data);
  if (!problem.ok()) return problem.status();
  const auto there = tools::DeviceTensors::make(device, data.tensors);
  if (!there.ok()) return there.status();
  ordered_json launches = ordered_json::array();
  double seconds = 0;
  gpu::isa::observe_traces([&](const gpu::isa::TracedLaunch& launch) {
    const auto time =
        run_kernel::time_launch(launch.program, launch.trace, launch.program.lds_bytes,
                                static_cast<double>(launch.workgroups) * times);
    if (!time) return;
    seconds += time->seconds;
    launches.push_back({{"kernel", launch.kernel},
                        {"workgroups", launch.workgroups},
                        {"resident", time->resident},
                        {"cycles", time->cycles},
                        {"seconds", time->seconds}});
  });
  const tools::VerifiedRun ran =
      tools::run_and_verify(problem.value(), data, *there.value(), device, kernel, 0);
  gpu::isa::observe_traces(nullptr);
  if (!ran.report.ok) return {StatusCode::verification_failed, ran.report.message};
  if (launches.empty())
    return {StatusCode::unavailable, fmt::format("there is no timeline of {}", words[0])};
  const ordered_json report{{"arch", words[0]},
                            {"problem", to_string(c)},
                            {"seconds", seconds},
                            {"tflops", times * problem->flops() / seconds / 1e12},
                            {"launches", launches}};
  fmt::print("{}\n", report.dump());
  return {};
}

int fail(const std::string& why) {
  fmt::print(stderr, "time_ours: {}\n", why);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8)
    return fail(
        "six arguments are needed, or seven: ARCH PASS HEAD_DIM SEQLEN CAUSAL TIMES [KERNEL]");
  const std::string pass = argv[2], causal = argv[5];
  if ((pass != "forward" && pass != "backward" && pass != "latent") ||
      (causal != "0" && causal != "1"))
    return fail("PASS is forward, backward or latent, CAUSAL 0 or 1");
  try {
    const Status status = run(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
    return status.ok() ? 0 : fail(status.message());
  } catch (const std::exception& error) {
    return fail(printable(error.what()));
  }
}
