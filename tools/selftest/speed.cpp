#include "tools/selftest/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "fulmen/probe.h"
#include "tools/bench/ceilings/ceilings.h"
#include "tools/bench/ceilings/device_copy_rate.h"
#include "tools/bench/measure/timed_passes.h"
#include "tools/verify/grid.h"
#include "tools/verify/sampled.h"
#include "tools/verify/verified_run.h"

namespace fulmen::tools {
namespace {

constexpr int kSpans = 7;
constexpr int kSlices = 10;  // samples of the device's best rate

GridCase timed_case(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                    int64_t kv_heads, int64_t dim, Pass pass) {
  GridCase c;
  c.dtype = DType::bf16;
  c.batch = batch;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = c.head_dim_v = dim;
  c.pass = pass;
  return c;
}

// A prompt, decoding, and gradients, whose reference is computed in full. A CPU has smaller
// problems.
std::vector<GridCase> timed_cases(bool on_host) {
  if (on_host) {
    return {timed_case(1, 1024, 1024, 4, 4, 128, Pass::forward),
            timed_case(2, 1, 4096, 16, 4, 128, Pass::forward),
            timed_case(1, 256, 256, 4, 4, 64, Pass::backward)};
  }
  return {timed_case(2, 4096, 4096, 16, 16, 128, Pass::forward),
          timed_case(16, 1, 8192, 32, 8, 128, Pass::forward),
          timed_case(2, 512, 512, 8, 8, 64, Pass::backward)};
}

Status measure(const std::string& device, const GridCase& grid_case, SpeedRow& row) {
  NormalPool pool(1);
  const GridData data = make_grid_data(grid_case, pool);
  const Result<Problem> problem = problem_of(grid_case, data);
  if (!problem.ok()) return problem.status();
  Result<Plan> planned = plan(problem.value(), device, {});
  if (!planned.ok()) return planned.status();
  row.kernel = planned->config().kernel;
  const Result<std::unique_ptr<DeviceTensors>> there = DeviceTensors::make(device, data.tensors);
  if (!there.ok()) return there.status();
  TimedPasses passes({std::move(planned).value()}, *there.value());
  if (Status status = passes.call(); !status.ok()) return status;
  if (Status status = there.value()->synchronize(); !status.ok()) return status;
  if (Status status = there.value()->download(grid_case.pass); !status.ok()) return status;
  const SampledReport checked = grid_case.pass == Pass::forward
                                    ? verify_sampled(problem.value(), data.tensors)
                                    : verify_gradients_sampled(problem.value(), data.tensors);
  row.ok = checked.report.ok;
  row.message = checked.report.message;
  if (Status status = passes.warm_up(); !status.ok()) return status;
  for (int i = 0; i < kSpans; ++i) {
    if (Status status = passes.span(); !status.ok()) return status;
  }
  std::vector<double> seconds = passes.seconds();
  std::nth_element(seconds.begin(),
                   seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  row.seconds = seconds[seconds.size() / 2];
  row.tflops = problem->flops() / row.seconds / 1e12;
  row.gigabytes_per_second = problem->bytes() / row.seconds / 1e9;
  return {};
}

}  // namespace

std::vector<SpeedRow> measure_speed(const std::string& device) {
  std::vector<SpeedRow> rows;
  if (is_emulated(device)) return rows;
  for (const GridCase& grid_case : timed_cases(uses_host_memory(device))) {
    SpeedRow& row = rows.emplace_back();
    row.problem = to_string(grid_case);
    if (const Status status = measure(device, grid_case, row); !status.ok())
      row.message = status.message();
  }
  return rows;
}

std::vector<Yardstick> measure_yardsticks(const std::string& device) {
  if (is_emulated(device)) return {};
  if (!uses_host_memory(device)) {
    std::vector<Yardstick> list{
        {"copy within the device's memory, read and written", device_copy_rate(device), "GB/s"}};
    if (const Result<MatrixRate> rate = matrix_rate(device); rate.ok())
      list.push_back({rate->instruction + " alone", rate->tflops, "TFLOP/s"});
    return list;
  }
  Ceilings ceilings(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  std::vector<Yardstick> list;
  for (const CeilingKind kind :
       {CeilingKind::fma, CeilingKind::bf16_dot, CeilingKind::amx_bf16, CeilingKind::read}) {
    if (!ceilings.has(kind)) continue;
    for (int i = 0; i < kSlices; ++i) ceilings.measure(kind);
    list.push_back({ceilings.description(kind), ceilings.best(kind),
                    kind == CeilingKind::read ? "GB/s" : "TFLOP/s"});
  }
  return list;
}

}  // namespace fulmen::tools
