#include "tools/bench/model/model_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tools/bench/report/case_json.h"

namespace fulmen::tools {
namespace {

std::string name_of(const ModelledRow& r) {
  return r.bench_case.name + (r.pass == Pass::backward ? " backward" : "");
}

std::string micro(double seconds) {
  return seconds < 0 ? "-" : fmt::format("{:.1f}", 1e6 * seconds);
}

}  // namespace

std::string model_head(const ChipRates& chip) {
  return fmt::format(
      "modelled, not measured: {}, {} compute units at {} GHz, {} TFLOP/s, {} GB/s\n{:44} {:>11} "
      "{:>8} {:>7}  {:>9} {:>9} {:>9} "
      "{:>9} {:>9} {:>9} {:>9}  limited by",
      chip.product, chip.compute_units, chip.ghz, chip.matrix_tflops, chip.memory_gb_s, "",
      "modelled us", "TFLOP/s", "GB/s", "matrix us", "exp us", "vector us", "LDS us", "caches us",
      "memory us", "launch us");
}

std::string model_line(const ModelledRow& r) {
  const BenchCase& c = r.bench_case;
  return fmt::format(
      "{:8} {:5} {:29} {:>11} {:8.1f} {:7.0f}  {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}; {}",
      c.suite, to_string(c.dtype), name_of(r), micro(r.times.seconds),
      r.flops / r.times.seconds / 1e12, r.work.memory_bytes / r.times.seconds / 1e9,
      micro(r.times.matrix_s), micro(r.times.exponential_s), micro(r.times.vector_s),
      micro(r.times.lds_s), micro(r.times.cache_s), micro(r.times.memory_s),
      micro(r.times.launch_s), r.times.limit, r.kernel);
}

std::string model_json(const ChipRates& chip, const std::vector<ModelledRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ModelledRow& r : rows) {
    const BenchCase& c = r.bench_case;
    const auto vector_s = r.times.vector_s < 0 ? nlohmann::ordered_json(nullptr)
                                               : nlohmann::ordered_json(r.times.vector_s);
    nlohmann::ordered_json row{{"suite", c.suite},
                               {"case", c.name},
                               {"pass", r.pass == Pass::backward ? "backward" : "forward"},
                               {"arch", chip.arch},
                               {"product", chip.product},
                               {"kernel", r.kernel}};
    add_problem(c, row);
    row.update({{"modelled_s", r.times.seconds},
                {"modelled_tflops", r.flops / r.times.seconds / 1e12},
                {"modelled_gb_s", r.work.memory_bytes / r.times.seconds / 1e9},
                {"matrix_s", r.times.matrix_s},
                {"exponential_s", r.times.exponential_s},
                {"vector_s", vector_s},
                {"lds_s", r.times.lds_s},
                {"cache_s", r.times.cache_s},
                {"memory_s", r.times.memory_s},
                {"launch_s", r.times.launch_s},
                {"limit", r.times.limit},
                {"matrix_flops", r.work.matrix_flops},
                {"exponentials", r.work.exponentials},
                {"vector_instructions", r.work.vector},
                {"lds_cycles", r.work.lds_cycles},
                {"global_bytes", r.work.global_bytes},
                {"scalar_instructions", r.work.scalar},
                {"lds_conflicts", r.work.lds_conflicts},
                {"waits", r.work.waits},
                {"registers", r.work.registers}});
    list.push_back(std::move(row));
  }
  return list.dump(1) + "\n";
}

}  // namespace fulmen::tools
