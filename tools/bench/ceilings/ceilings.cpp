#include "tools/bench/ceilings/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>

#include "runtime/platform/system.h"
#include "tools/bench/ceilings/ceiling_loops.h"
#include "tools/bench/measure/clock.h"
#include "tools/tensors/memory.h"

namespace fulmen::tools {
namespace {

constexpr double kSliceSeconds = 2e-3;  // long against a timer and a thread's wake-up
constexpr double kMaxSliceSeconds = 20e-3;
constexpr int kSearchSlices = 5;  // slices a variant gets when the best one is looked for
constexpr std::size_t kReadBytes = std::size_t{512} << 20;

// Runs body(thread) on every thread at once and returns the sum of rates: each thread's work over
// its own time. Threads that the system does not give add nothing.
template <class Body>
double sum_of_rates(int num_threads, double work_per_thread, const Body& body) {
  std::vector<double> rates(static_cast<std::size_t>(num_threads));
  std::atomic<int> begun{0}, expected{num_threads};
  const auto run = [&](int thread) {
    // All threads begin at once.
    for (begun.fetch_add(1); begun.load() < expected.load();) std::this_thread::yield();
    const auto start = Clock::now();
    body(thread);
    rates[static_cast<std::size_t>(thread)] = work_per_thread / seconds_since(start);
  };
  std::vector<std::thread> threads;
  try {
    for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(run, thread);
  } catch (const std::system_error&) {
    expected.store(static_cast<int>(threads.size()) + 1);
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace

struct Ceilings::Impl {
  struct Compute {
    ComputeLoop loop{};
    int64_t iterations = 0;
    double seconds = 0;  // the time of so many iterations
  };

  int num_threads = 1;
  std::array<Compute, 3> compute;  // by kind; no loop where the machine has none
  std::vector<ReadLoop> reads;
  std::size_t best_read = 0;  // the index of the best variant in `reads`
  std::size_t next_read = 0;
  std::size_t next_own_read = 0;
  Memory buffer;
  std::size_t next_half = 0;
  std::array<double, 4> best{};
  volatile double sink = 0;

  double compute_slice(const Compute& compute_loop, int64_t iterations) {
    std::vector<float> results(static_cast<std::size_t>(num_threads) * 16);  // a cache line each
    const double work = compute_loop.loop.flops_per_iteration * static_cast<double>(iterations);
    const double rate = sum_of_rates(num_threads, work, [&](int thread) {
      results[static_cast<std::size_t>(thread) * 16] = compute_loop.loop.run(iterations);
    });
    sink = results[0];
    return rate / 1e12;
  }

  // Slices alternate between halves of the buffer, so none finds in a cache what the last one left.
  double read_slice(const ReadLoop& loop) {
    const std::size_t half = buffer.size() / 2;
    const std::byte* data = static_cast<const std::byte*>(buffer.data()) + half * next_half;
    next_half ^= 1;
    return read(loop, {data, half});
  }

  double read(const ReadLoop& loop, std::span<const std::byte> bytes) {
    const std::size_t part = bytes.size() / static_cast<std::size_t>(num_threads) / 16384 * 16384;
    const std::byte* data = bytes.data();
    std::vector<uint64_t> results(static_cast<std::size_t>(num_threads) * 8);
    const double rate = sum_of_rates(num_threads, static_cast<double>(part), [&](int thread) {
      results[static_cast<std::size_t>(thread) * 8] =
          loop.run(data + part * static_cast<std::size_t>(thread), part);
    });
    sink = static_cast<double>(results[0]);
    return rate / 1e9;
  }

  // The best variant alternates with each other one: the race is close, and a busy neighbour would
  // decide it.
  double measure_read() {
    const std::size_t turn = next_read++;
    const std::size_t chosen = turn % 2 == 0 ? best_read : turn / 2 % reads.size();
    const double rate = read_slice(reads[chosen]);
    double& best_rate = best[static_cast<std::size_t>(CeilingKind::read)];
    if (rate > best_rate) best_read = chosen;
    best_rate = std::max(best_rate, rate);
    return rate;
  }

  double measure_read_of(std::span<const std::span<const std::byte>> buffers) {
    measure_read();
    const ReadLoop& loop = reads[next_own_read++ % reads.size()];
    double bytes = 0, seconds = 0;
    for (const auto& buffer : buffers) {
      const double rate = read(loop, buffer);
      if (rate <= 0) return 0;
      bytes += static_cast<double>(buffer.size());
      seconds += static_cast<double>(buffer.size()) / rate;
    }
    return bytes / seconds;
  }

  void find_compute(CeilingKind kind, const std::vector<ComputeLoop>& loops) {
    const auto index = static_cast<std::size_t>(kind);
    for (const ComputeLoop& loop : loops) {
      Compute candidate{loop, 1000};
      for (;; candidate.iterations *= 2) {
        const auto start = Clock::now();
        sink = loop.run(candidate.iterations);
        candidate.seconds = seconds_since(start);
        if (candidate.seconds > kSliceSeconds) break;
      }
      double rate = 0;
      for (int i = 0; i < kSearchSlices; ++i)
        rate = std::max(rate, compute_slice(candidate, candidate.iterations));
      if (rate > best[index]) {
        best[index] = rate;
        compute[index] = candidate;
      }
    }
  }

  void find_read() {
    // Much bigger than the caches; four times the last level where that is more.
    const std::size_t bytes =
        std::max(kReadBytes, 4 * static_cast<std::size_t>(platform::cache_bytes(3)));
    buffer = Memory(bytes);
    if (buffer.data() == nullptr) return;
    // Untouched pages would all be one page of zeros; threads share the work, so that each has
    // pages near it.
    sum_of_rates(num_threads, 1, [&](int thread) {
      const std::size_t part = bytes / static_cast<std::size_t>(num_threads);
      std::memset(static_cast<std::byte*>(buffer.data()) + part * static_cast<std::size_t>(thread),
                  1, part);
    });
    reads = read_loops();
    for (std::size_t i = 0; i < 4 * reads.size(); ++i) measure_read();
  }
};

Ceilings::Ceilings(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->num_threads = std::max(1, num_threads);
  impl_->find_compute(CeilingKind::fma, fma_loops());
  impl_->find_compute(CeilingKind::bf16_dot, bf16_dot_loops());
  impl_->find_compute(CeilingKind::amx_bf16, amx_bf16_loops());
  impl_->find_read();
}

Ceilings::~Ceilings() = default;

bool Ceilings::has(CeilingKind kind) const noexcept { return best(kind) > 0; }
double Ceilings::best(CeilingKind kind) const noexcept {
  return impl_->best[static_cast<std::size_t>(kind)];
}
int Ceilings::num_threads() const noexcept { return impl_->num_threads; }

double Ceilings::measure_read_of(std::span<const std::span<const std::byte>> buffers) {
  return has(CeilingKind::read) ? impl_->measure_read_of(buffers) : 0;
}

double Ceilings::measure(CeilingKind kind, double seconds) {
  if (!has(kind)) return 0;
  if (kind == CeilingKind::read) return impl_->measure_read();
  const auto index = static_cast<std::size_t>(kind);
  const Impl::Compute& compute = impl_->compute[index];
  const double length = std::clamp(seconds, kSliceSeconds, kMaxSliceSeconds) / compute.seconds;
  const double rate = impl_->compute_slice(
      compute,
      std::max<int64_t>(1, std::llround(length * static_cast<double>(compute.iterations))));
  impl_->best[index] = std::max(impl_->best[index], rate);
  return rate;
}

std::string Ceilings::description(CeilingKind kind) const {
  constexpr std::array kNames{"peak fp32 FMA", "peak bf16 dot (vdpbf16ps)", "peak bf16 tiles (AMX)",
                              "memory read"};
  const auto index = static_cast<std::size_t>(kind);
  if (!has(kind)) return fmt::format("{:26} not on this machine", kNames[index]);
  if (kind == CeilingKind::read)
    return fmt::format("{:26} {:8.1f} GB/s     {}", kNames[index], best(kind),
                       impl_->reads[impl_->best_read].name);
  return fmt::format("{:26} {:8.3f} TFLOP/s  {}", kNames[index], best(kind),
                     impl_->compute[index].loop.name);
}

}  // namespace fulmen::tools
