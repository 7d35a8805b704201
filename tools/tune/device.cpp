#include "tools/tune/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "fulmen/fulmen.h"
#include "tools/options/problem_arguments.h"
#include "tools/verify/sampled.h"

namespace fulmen::tools {
namespace {

constexpr uint64_t kSeed = 20240229;
constexpr std::size_t kMaxBytes = std::size_t{8} << 30;

// Plans of configurations, made ahead on all processors: the next ones compile while the first are
// verified.
class PlansAhead {
 public:
  PlansAhead(const Problem& problem, std::string device, AttentionOptions options,
             std::vector<std::string> configurations)
      : problem_(problem),
        device_(std::move(device)),
        options_(std::move(options)),
        order_(std::move(configurations)) {
    made_.resize(order_.size());
    // A processor's plans are made in no time.
    const unsigned count =
        uses_host_memory(device_) ? 0 : std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
    for (unsigned n = 0; n < count; ++n) threads_.emplace_back([this] { work(); });
  }
  PlansAhead(const PlansAhead&) = delete;
  PlansAhead& operator=(const PlansAhead&) = delete;
  ~PlansAhead() { stop(); }

  // From now on nothing compiles, because that would disturb what is timed.
  void stop() {
    next_ = order_.size();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  Result<Plan> take(const std::string& configuration) {
    const auto at = static_cast<std::size_t>(
        std::find(order_.begin(), order_.end(), configuration) - order_.begin());
    if (threads_.empty() || at >= order_.size()) return make(configuration);
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return made_[at].has_value(); });
    return std::move(*made_[at]);  // nobody asks twice
  }

 private:
  Result<Plan> make(const std::string& configuration) const {
    AttentionOptions options = options_;
    options.tuning = configuration;
    options.check_first_use = false;  // each is verified before it is timed
    return plan(problem_, device_, options);
  }
  void work() {
    for (std::size_t n = next_++; n < order_.size(); n = next_++) {
      Result<Plan> plan = make(order_[n]);
      const std::scoped_lock lock(mutex_);
      made_[n] = std::move(plan);
      ready_.notify_all();
    }
  }

  const Problem& problem_;
  std::string device_;
  AttentionOptions options_;
  std::vector<std::string> order_;
  std::vector<std::optional<Result<Plan>>> made_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::thread> threads_;
};

class RealDevice final : public TuneDevice {
 public:
  RealDevice(const TuneProblem& problem, const CaseData& data, const DeviceTensors& there,
             PlansAhead& plans, const TuneSettings& settings,
             const std::map<std::string, std::string>& excluded, const Teller& teller)
      : pass_(problem.pass),
        data_(data),
        there_(there),
        plans_(plans),
        settings_(settings),
        excluded_(excluded),
        teller_(teller) {}

  Status prepare(const std::string& configuration) override {
    begin("compile", configuration);
    if (const auto out = excluded_.find(configuration); out != excluded_.end()) {
      return {StatusCode::unavailable, out->second};
    }
    Result<Plan> plan = plans_.take(configuration);
    if (!plan.ok()) return plan.status();
    passes_[configuration] =
        std::make_unique<TimedPasses>(std::vector<Plan>{std::move(plan).value()}, there_);
    return {};
  }
  Status verify(const std::string& configuration) override {
    begin("verify", configuration);
    // What an earlier configuration left must not pass for this one's results.
    for (Tensor AttentionTensors::* const output : outputs_of(pass_)) poison(data_.tensors.*output);
    Status status = there_.upload_outputs(pass_);
    if (status.ok()) status = passes_.at(configuration)->call();
    if (status.ok()) status = there_.download(pass_);
    if (!status.ok()) return status;
    const SampledReport checked = pass_ == Pass::forward
                                      ? verify_sampled(data_.problem, data_.tensors)
                                      : verify_gradients_sampled(*data_.backward, data_.tensors);
    if (checked.report.ok) return {};
    return {StatusCode::verification_failed, "wrong results: " + checked.report.message};
  }
  Result<double> time(const std::string& configuration) override {
    plans_.stop();
    begin("time", configuration);
    TimedPasses& passes = *passes_.at(configuration);
    if (warm_.insert(configuration).second) {
      if (Status status = passes.warm_up(); !status.ok()) return status;
    }
    if (Status status = passes.span(); !status.ok()) return status;
    return passes.last_call_seconds();
  }
  void drop(const std::string& configuration) override { passes_.erase(configuration); }
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  void begin(const char* what, const std::string& configuration) const {
    teller_.begin(fmt::format("{} {}", what, configuration), settings_.step_seconds);
  }
  static void poison(const Tensor& tensor) {
    if (tensor.data == nullptr) return;
    std::memset(tensor.data, 0xFF,
                stored_elements(tensor) * static_cast<std::size_t>(size_of(tensor.dtype)));
  }

  Pass pass_;
  const CaseData& data_;
  const DeviceTensors& there_;
  PlansAhead& plans_;
  const TuneSettings& settings_;
  const std::map<std::string, std::string>& excluded_;
  const Teller& teller_;
  std::map<std::string, std::unique_ptr<TimedPasses>> passes_;
  std::set<std::string> warm_;
};

// The forward pass by the default kernel: the backward pass reads its results.
Status run_forward(const CaseData& data, const DeviceTensors& there, const std::string& device) {
  Result<Plan> forward = plan(data.problem, device, data.options);
  if (!forward.ok()) return forward.status();
  Status status = TimedPasses({std::move(forward).value()}, there).call();
  return status.ok() ? there.download(Pass::forward) : status;
}

// Returns true if this user has a result of this very kernel, device and software.
bool is_kept(const KernelTuning& identity) {
  const Result<std::vector<TuneRecord>> records = read_records(tuned_results_file(identity.chip));
  return records.ok() && std::any_of(records->begin(), records->end(), [&](const TuneRecord& r) {
           return r.kernel == identity.kernel && r.problem_class == identity.problem_class &&
                  r.build == identity.build && r.compute_units == identity.compute_units &&
                  r.product == identity.product && r.driver == identity.driver &&
                  r.compiler == identity.compiler;
         });
}

Status search(const TuneProblem& problem, const TuneSettings& settings,
              const std::map<std::string, std::string>& excluded, const Teller& teller,
              TunedProblem& tuned) {
  teller.begin("prepare the problem", settings.step_seconds);
  if (Status status = check_device_and_kernel(settings.device, settings.kernel); !status.ok())
    return status;
  AttentionOptions options;
  options.num_threads = settings.num_threads;
  options.deterministic = settings.kernel.empty();  // a named kernel may use atomics
  options.kernel = settings.kernel;
  const Result<Problem> target = case_problem(problem.bench_case, problem.pass, options);
  if (!target.ok()) return target.status();
  tuned.flops = target->flops();
  tuned.bytes = target->bytes();
  Result<KernelTuning> identity = kernel_tuning(target.value(), settings.device, options);
  tuned.tunable = identity.ok() || identity.status().code() != StatusCode::unsupported;
  if (!identity.ok()) return identity.status();
  tuned.identity = std::move(identity).value();
  tuned.kept = settings.resume && is_kept(tuned.identity);
  if (tuned.kept) return {};
  options.kernel.clear();
  NormalPool pool(kSeed);
  Result<std::unique_ptr<CaseData>> made =
      make_case_data(problem.bench_case, pool, options, kMaxBytes);
  if (!made.ok()) return made.status();
  const CaseData& data = *made.value();
  const Result<std::unique_ptr<DeviceTensors>> there =
      DeviceTensors::make(settings.device, data.tensors);
  if (!there.ok()) return there.status();
  const bool backward = problem.pass == Pass::backward;
  if (backward) {
    if (Status status = run_forward(data, *there.value(), settings.device); !status.ok())
      return status;
  }
  options = data.options;
  options.kernel = tuned.identity.kernel;
  std::vector<std::string> order = nearest_first(tuned.identity.configurations);
  tuned.identity.configurations.clear();
  const std::size_t count = std::min(order.size(), settings.limits.max_candidates);
  PlansAhead plans(target.value(), settings.device, options,
                   {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count)});
  RealDevice device(problem, data, *there.value(), plans, settings, excluded, teller);
  Result<TuneOutcome> outcome = tune(order, device, settings.limits, [&](const std::string& step) {
    teller.tell("progress " + step);
  });
  if (!outcome.ok()) return outcome.status();
  tuned.outcome = std::move(outcome).value();
  return {};
}

}  // namespace

void tune_problem(const TuneProblem& problem, const TuneSettings& settings,
                  const std::map<std::string, std::string>& excluded, const Teller& teller) {
  TunedProblem tuned;
  tuned.name = problem.bench_case.name;
  tuned.device = settings.device;
  tuned.arguments = tune_problem_text(problem.bench_case, problem.pass);
  const Status status = search(problem, settings, excluded, teller, tuned);
  if (!status.ok()) tuned.error = status.message();
  teller.tell("result " + tuned_text(tuned));
}

std::string tuned_text(const TunedProblem& t) {
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const TuneCandidate& c : t.outcome.candidates) {
    const TuneStatistics& s = c.statistics;
    candidates.push_back({{"configuration", c.configuration},
                          {"problem", c.problem},
                          {"timed", c.timed},
                          {"rounds", c.rounds},
                          {"mean_s", s.mean},
                          {"median_s", s.median},
                          {"max_s", s.max},
                          {"min_s", s.min},
                          {"deviation_s", s.deviation}});
  }
  const nlohmann::ordered_json json{{"name", t.name},
                                    {"device", t.device},
                                    {"arguments", t.arguments},
                                    {"error", t.error},
                                    {"tunable", t.tunable},
                                    {"kept", t.kept},
                                    {"kernel", t.identity.kernel},
                                    {"chip", t.identity.chip},
                                    {"compute_units", t.identity.compute_units},
                                    {"build", t.identity.build},
                                    {"problem_class", t.identity.problem_class},
                                    {"product", t.identity.product},
                                    {"driver", t.identity.driver},
                                    {"compiler", t.identity.compiler},
                                    {"flops", t.flops},
                                    {"bytes", t.bytes},
                                    {"winner", t.outcome.winner},
                                    {"untried", t.outcome.untried},
                                    {"gain", t.outcome.gain},
                                    {"noise", t.outcome.noise},
                                    {"candidates", candidates}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<TunedProblem> read_tuned(const std::string& text) {
  try {
    const nlohmann::json j = nlohmann::json::parse(text);
    TunedProblem t;
    t.name = j.at("name").get<std::string>();
    t.device = j.at("device").get<std::string>();
    t.arguments = j.at("arguments").get<std::string>();
    t.error = j.at("error").get<std::string>();
    t.tunable = j.at("tunable").get<bool>();
    t.kept = j.at("kept").get<bool>();
    t.identity = {.kernel = j.at("kernel").get<std::string>(),
                  .chip = j.at("chip").get<std::string>(),
                  .compute_units = j.at("compute_units").get<int>(),
                  .build = j.at("build").get<std::string>(),
                  .problem_class = j.at("problem_class").get<std::string>(),
                  .configurations = {},
                  .product = j.at("product").get<std::string>(),
                  .driver = j.at("driver").get<std::string>(),
                  .compiler = j.at("compiler").get<std::string>()};
    t.flops = j.at("flops").get<double>();
    t.bytes = j.at("bytes").get<double>();
    t.outcome.winner = j.at("winner").get<std::size_t>();
    t.outcome.untried = j.at("untried").get<std::size_t>();
    t.outcome.gain = j.at("gain").get<double>();
    t.outcome.noise = j.at("noise").get<double>();
    for (const nlohmann::json& c : j.at("candidates")) {
      t.outcome.candidates.push_back({c.at("configuration").get<std::string>(),
                                      c.at("problem").get<std::string>(),
                                      c.at("timed").get<bool>(),
                                      {c.at("mean_s").get<double>(), c.at("median_s").get<double>(),
                                       c.at("max_s").get<double>(), c.at("min_s").get<double>(),
                                       c.at("deviation_s").get<double>()},
                                      c.at("rounds").get<int>()});
    }
    return t;
  } catch (const nlohmann::json::exception& error) {
    return Status(StatusCode::internal,
                  fmt::format("a worker's result cannot be read: {}", error.what()));
  }
}

}  // namespace fulmen::tools
