#include "gpu/first_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/compile/cache/cache.h"
#include "gpu/small_problem.h"
#include "reference/verify/verify.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/tensor_table.h"

namespace fulmen::gpu {
namespace {

// Raise it when another small problem is taken, or another rule: kept verdicts are then made again.
constexpr int kCheck = 2;
constexpr std::string_view kRight = "right: ", kWrong = "wrong: ";

// Few rows, with an edge of every tile; then what a bias's gradient that is summed over many
// batches or heads needs.
constexpr std::array kSizes{
    SmallSizes{2, 160, 160}, SmallSizes{16, 160, 160}, SmallSizes{2, 96, 96, 16, 16},
    SmallSizes{64, 96, 96}, SmallSizes{16, 160, 160, 16, 16},
    // Wide heads where the reference is to take milliseconds; keys that are split though rows are
    // many.
    SmallSizes{2, 160, 160, 1, 1}, SmallSizes{1, 160, 160, 1, 2}, SmallSizes{1, 160, 160, 1, 1},
    SmallSizes{1, 80, 80, 1, 1}, SmallSizes{1, 48, 1280, 1, 1},
    // Heads that share tiles of short sequences.
    SmallSizes{2, 40, 80, 1, 64}};
// Flop limits of the reference, which computes one flop a nanosecond on a processor. The first is
// about a second of several processors; the second is less than a twentieth of what compiling the
// kernels takes, which is what a check on every GPU may cost. AMD's kernels have not been seen on
// their chips, and get the first.
constexpr double kMostFlops = 8e9, kMostFlopsBesideCompiling = 4e7;
constexpr std::size_t kMostBytes = 1 << 28;  // of a tensor: pages may be of any size

std::string kernels_of(const LaunchPlan& plan) {
  std::string text;
  for (const KernelLaunch& launch : plan.launches) {
    if (launch.workgroups > 0)
      text += fmt::format("{}\n{}\n", launch.specialisation.entry, prelude(launch.specialisation));
  }
  return text;
}

// AMD, and who asked for the check.
bool may_take_a_second(const Driver& driver) {
  return driver.name() != "cuda" || !environment("FULMEN_FIRST_USE_CHECK").empty();
}

// What was found out in this process.
struct Known {
  Mutex mutex;
  std::map<std::string, std::string> verdicts;  // by the code's identity
  std::map<std::string, std::string> refused;   // by device, kernel and constants
};
Known& known() {
  constinit static MadeOnce<Known> made;
  return made.get();
}

std::string refusal_key(const Device& device, const std::string& kernel, const LaunchPlan& plan) {
  return fmt::format("{}\n{}\n{}", device.info.name, kernel, kernels_of(plan));
}

// A stream for one small problem and the memory that it takes there: a caller's work is neither
// waited for nor kept waiting.
class OwnStream {
 public:
  OwnStream(const Driver& driver, int device)
      : driver_(driver), device_(device), stream_(driver.create_stream(device)) {}
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() {
    for (void* memory : owned_) {
      if (stream() == nullptr) {
        driver_.free(device_, memory);
      } else {
        driver_.free_in_stream(device_, stream(), memory);
      }
    }
    if (stream() != nullptr) driver_.destroy_stream(device_, stream());
  }
  Status status() const { return stream_.status(); }
  void* stream() const { return stream_.ok() ? stream_.value() : nullptr; }
  Result<void*> allocate(std::size_t bytes) {
    Result<void*> memory = stream() == nullptr
                               ? driver_.allocate(device_, bytes)
                               : driver_.allocate_in_stream(device_, stream(), bytes);
    if (memory.ok()) owned_.push_back(memory.value());
    return memory;
  }
  Status copy(void* to, const void* from, std::size_t bytes) const {
    return driver_.copy_in_stream(device_, stream(), to, from, bytes);
  }
  Status fill(void* to, unsigned char byte, std::size_t bytes) const {
    return driver_.fill_in_stream(device_, stream(), to, byte, bytes);
  }
  Status wait() const { return driver_.synchronize(device_, stream()); }

 private:
  const Driver& driver_;
  int device_;
  Result<void*> stream_;
  std::vector<void*> owned_;
};

// Runs the small problem on the device; its outputs are then in host memory. verification_failed:
// the device refused to run it.
Status run_small(const FirstUse& use, const GpuRunner& runner, const Problem& p,
                 AttentionTensors& host) {
  OwnStream stream(use.driver, use.device.ordinal);
  if (!stream.status().ok()) return stream.status();
  AttentionTensors there = host;
  const auto shapes = shapes_of(p);
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    const std::size_t bytes = bytes_of(p.*field.spec, shapes[i]);
    Tensor& tensor = there->*field.tensor;
    if (bytes == 0 || tensor.data == nullptr) continue;
    if (p.values_in_keys && field.spec == &Problem::v) {
      tensor.data = there.k.data;
      continue;
    }
    const Result<void*> to = stream.allocate(bytes);
    if (!to.ok()) return to.status();
    if (Status status = stream.copy(to.value(), tensor.data, bytes); !status.ok()) return status;
    tensor.data = to.value();
  }
  void* workspace = nullptr;
  if (const std::size_t bytes = runner.workspace_bytes(); bytes > 0) {
    const Result<void*> made = stream.allocate(bytes);
    if (!made.ok()) return made.status();
    workspace = made.value();
    if (Status status = stream.fill(workspace, 0xFF, bytes); !status.ok()) return status;
  }
  Status ran = runner.run(stream.stream(), there, workspace);
  if (ran.ok()) ran = stream.wait();
  if (!ran.ok()) return {StatusCode::verification_failed, "did not run: " + ran.message()};
  const auto pass = static_cast<std::size_t>(p.pass);
  for (int i = 0; i < kTensorFields; ++i) {
    const TensorField& field = kTensorTable[i];
    const std::size_t bytes = bytes_of(p.*field.spec, shapes[i]);
    if (bytes == 0 || !field.written[pass]) continue;
    if (Status status = stream.copy((host->*field.tensor).data, (there->*field.tensor).data, bytes);
        !status.ok())
      return status;
  }
  return stream.wait();
}

// "right: ..." or "wrong: ...". Errors: verification_failed, the device refused to run it; others,
// it could not be found out.
Result<std::string> find_out(const FirstUse& use, const SmallUse& small) {
  SmallTensors host;
  if (Status status = host.make(small.problem, use.options); !status.ok()) return status;
  GpuRunner runner(use.driver, use.device, small.problem, small.plan, KernelConfig{use.kernel},
                   true);
  if (Status status = runner.load(); !status.ok()) return status;
  Status ran;
  use.driver.beside_captures([&] { ran = run_small(use, runner, small.problem, host.tensors); });
  if (!ran.ok()) return ran;
  const Result<VerifyReport> report = reference::verify(small.problem, host.tensors, use.options);
  if (!report.ok()) return report.status();
  if (!report->ok)
    return fmt::format("{}{}, of {}", kWrong, report->message, to_string(small.problem));
  return fmt::format("{}the largest error of {} was {:.3g}, {:.3g} is allowed, of {}", kRight,
                     report->tensor, report->worst_error, report->bound, to_string(small.problem));
}

// In memory, on disk, or found out now. Which of these is said behind the verdict.
Result<std::string> verdict_of(const FirstUse& use) {
  const DeviceProperties& properties = use.device.properties;
  const std::string identity =
      fmt::format("first use {}\n{}\n{}\n{}\n{}", kCheck, use.driver.name(), properties.name,
                  properties.arch, use.runner.code_identity());
  {
    const std::scoped_lock lock(known().mutex);
    if (const auto found = known().verdicts.find(identity); found != known().verdicts.end())
      return found->second;
  }
  std::string verdict = kept_verdict(identity);
  if (!verdict.starts_with(kRight) && !verdict.starts_with(kWrong)) {
    const std::optional<SmallUse> small = find_small_use(
        use.family, use.device.chip, properties.compute_units, use.problem, use.runner.plan(),
        use.values, may_take_a_second(use.driver) ? kMostFlops : kMostFlopsBesideCompiling);
    if (!small) {
      return Status(StatusCode::unsupported, "no small problem runs these very kernels");
    }
    Result<std::string> found = find_out(use, *small);
    if (!found.ok()) return found;
    verdict = std::move(found).value();
    keep_verdict(identity, "first use of " + use.kernel, properties.arch, verdict);
  }
  const std::scoped_lock lock(known().mutex);
  known().verdicts.emplace(identity, verdict);
  return verdict;
}

}  // namespace

std::optional<SmallUse> find_small_use(const Family& family, const Chip& chip, int compute_units,
                                       const Problem& problem, const LaunchPlan& wanted,
                                       const tuning::Values& values, double most_flops) {
  // What a function or a block mask makes of other lengths and other tensors is not known.
  if (problem.functions.any() || problem.has_block_mask()) return {};
  const std::string kernels = kernels_of(wanted);
  for (const SmallSizes& sizes : kSizes) {
    const Problem p = small_problem(problem, sizes);
    const auto shapes = shapes_of(p);
    bool too_large = p.flops() > most_flops;
    for (int i = 0; i < kTensorFields; ++i)
      too_large = too_large || bytes_of(p.*kTensorTable[i].spec, shapes[i]) > kMostBytes;
    if (too_large || !family.serves(p, chip).yes) continue;
    // Its own plan; that of a device which few tiles fill, as the problem's many fill this one; and
    // one with the numbers that the problem's plan has.
    std::vector<LaunchPlan> plans{family.plan(p, chip, compute_units), family.plan(p, chip, 1)};
    if (!values.empty()) plans.push_back(family.tuned_plan(p, chip, compute_units, values));
    for (LaunchPlan& plan : plans) {
      if (kernels_of(plan) != kernels) continue;
      std::erase_if(plan.launches,
                    [](const KernelLaunch& launch) { return launch.workgroups == 0; });
      return SmallUse{p, std::move(plan)};
    }
  }
  return {};
}

bool checks_first_use(const Driver& driver, const AttentionOptions& options) {
  if (!options.check_first_use) return false;
  const std::string asked = environment("FULMEN_FIRST_USE_CHECK");
  return asked.empty() ? driver.name() == "hip" || driver.name() == "cuda" : asked != "0";
}

Result<std::string> check_first_use(const FirstUse& use) {
  if (use.runner.plan().launches.empty()) return std::string();
  if (use.driver.is_capturing(use.device.ordinal, nullptr)) {
    return std::string("first use not checked: a stream is being captured");
  }
  const Result<std::string> verdict = verdict_of(use);
  if (verdict.ok() && verdict->starts_with(kRight))
    return "first use checked: " + verdict->substr(kRight.size());
  std::string found;
  if (verdict.ok()) {
    found = fmt::format(
        "gave a wrong result: {}. FULMEN_FIRST_USE_CHECK=0 runs it all the same; `fulmen cache "
        "clear` has it checked "
        "again",
        verdict->substr(kWrong.size()));
  } else if (verdict.status().code() == StatusCode::verification_failed &&
             !use.driver.is_capturing(use.device.ordinal, nullptr)) {
    // Not kept on disk: the reason may lie in the device's state.
    found = verdict.status().message();
  } else {
    return "first use not checked: " + verdict.status().message();
  }
  std::string message = fmt::format("its first use on {} {}", use.device.info.name, found);
  const std::scoped_lock lock(known().mutex);
  known().refused.emplace(refusal_key(use.device, use.kernel, use.runner.plan()), message);
  return Status(StatusCode::verification_failed, std::move(message));
}

std::string first_use_refusal(const Device& device, const std::string& kernel,
                              const std::function<LaunchPlan()>& plan) {
  {
    const std::scoped_lock lock(known().mutex);
    if (known().refused.empty()) return {};
  }
  const std::string key = refusal_key(device, kernel, plan());
  const std::scoped_lock lock(known().mutex);
  const auto found = known().refused.find(key);
  return found == known().refused.end() ? std::string() : found->second;
}

}  // namespace fulmen::gpu
