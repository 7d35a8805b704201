// fulmen/probe.h: the kernels of kernels/probes, and the answers that other kernels rely on.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include "fulmen/probe.h"
#include "gpu/device_list.h"
#include "gpu/driver.h"
#include "gpu/loaded_kernels.h"
#include "plan/registry.h"
#include "runtime/fork_safe.h"

namespace fulmen {
namespace {

using gpu::Device;
using gpu::Driver;

// As kernels/probes/probe.h has it.
struct ProbeArguments {
  const void* in;
  void* out;
  long long count;
};

// A device that can be asked: a GPU's driver, or none for a CPU and a user's backend.
struct Asked {
  const Driver* driver = nullptr;
  const Device* device = nullptr;
  bool emulates_source() const { return driver->name() == "emulated"; }
  // Whose matrix instructions the probes use; null for a chip without.
  const gpu::Target* products() const {
    const gpu::Target& target = *device->chip.target;
    if (target.is_portable()) return nullptr;
    return target.extends != nullptr ? target.extends : &target;
  }
};

Result<Asked> find(const std::string& name) {
  if (Status status = check_device(name); !status.ok()) return status;
  for (const Driver* driver :
       {&gpu::hip_driver(), &gpu::cuda_driver(), &gpu::emulated_driver(), &gpu::isa_driver()}) {
    if (name != driver->name() && !name.starts_with(fmt::format("{}:", driver->name()))) continue;
    return Asked{driver, gpu::DeviceList(*driver).find(name)};
  }
  return Asked{};
}

struct Grid {
  int64_t workgroups = 1;
  int workgroup_size = 0;  // 0: one wave
  int64_t count = 0;
};

// A probe's memory on the device, and its kernel.
class ProbeRun {
 public:
  explicit ProbeRun(const Asked& asked) : driver_(*asked.driver), device_(*asked.device) {}
  ProbeRun(const ProbeRun&) = delete;
  ProbeRun& operator=(const ProbeRun&) = delete;
  ~ProbeRun() {
    for (void* memory : owned_) driver_.free(device_.ordinal, memory);
  }

  Status prepare(std::string_view name, const gpu::Target* target, std::span<const std::byte> in,
                 std::size_t out_bytes, const Grid& grid) {
    gpu::Specialisation s;
    entry_ = fmt::format("probes/{}.h", name);
    s.entry = entry_;
    s.target = target;
    s.dtype = s.kv_dtype = static_cast<int>(DType::bf16);
    s.block_m = s.block_n = 16;  // nothing depends on them
    s.workgroup = grid.workgroup_size > 0 ? grid.workgroup_size : device_.chip.wave_size;
    const Result<gpu::KernelOnDevice> kernel = load_kernel(driver_, device_, s);
    if (!kernel.ok()) return kernel.status();
    function_ = kernel->function;
    launch_ = {grid.workgroups, s.workgroup, 0, nullptr, &arguments_, sizeof(arguments_)};
    out_bytes_ = out_bytes;
    for (const auto& [bytes, pointer] : {std::pair{in.size(), &in_}, {out_bytes, &out_}}) {
      const Result<void*> memory = driver_.allocate(device_.ordinal, bytes);
      if (!memory.ok()) return memory.status();
      owned_.push_back(memory.value());
      *pointer = memory.value();
    }
    arguments_ = {in_, out_, grid.count};
    if (Status status = driver_.copy(device_.ordinal, in_, in.data(), in.size()); !status.ok())
      return status;
    return driver_.fill(device_.ordinal, out_, 0, out_bytes);
  }
  Status launch() {
    if (Status status = driver_.launch(device_.ordinal, function_, launch_); !status.ok())
      return status;
    return driver_.synchronize(device_.ordinal, nullptr);
  }
  template <class T>
  Result<std::vector<T>> answers() {
    std::vector<T> values(out_bytes_ / sizeof(T));
    if (Status status = driver_.copy(device_.ordinal, values.data(), out_, out_bytes_);
        !status.ok())
      return status;
    return values;
  }

 private:
  const Driver& driver_;
  const Device& device_;
  std::string entry_;  // what the specialisation has a view of
  gpu::Function function_;
  ProbeArguments arguments_{};
  gpu::Launch launch_;
  void *in_ = nullptr, *out_ = nullptr;
  std::size_t out_bytes_ = 0;
  std::vector<void*> owned_;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// A probe's kernel run once: the words that it wrote.
Result<std::vector<uint32_t>> ask(const Asked& asked, std::string_view name,
                                  std::span<const std::byte> in, std::size_t words,
                                  const Grid& grid = {}) {
  ProbeRun run(asked);
  if (Status status = run.prepare(name, asked.products(), in, 4 * words, grid); !status.ok())
    return status;
  if (Status status = run.launch(); !status.ok()) return status;
  return run.answers<uint32_t>();
}

// Fills in a probe, or returns why there is no answer.
using Question = std::function<Status(const Asked& asked, HardwareProbe& probe)>;

Status buffer_range(const Asked& asked, HardwareProbe& probe) {
  const auto wave = static_cast<std::size_t>(asked.device->chip.wave_size);
  const std::size_t bytes = 4 * wave;
  const auto words = ask(asked, "buffer_range", bytes_of(std::vector<uint32_t>(2 * wave, 7)), wave,
                         {.count = static_cast<int64_t>(bytes)});
  if (!words.ok()) return words.status();
  const auto inside = std::count(words->begin(), words->begin() + 16, 7U),
             outside = std::count(words->begin() + 16, words->end(), 0U);
  probe.as_expected = inside == 16 && outside == static_cast<std::ptrdiff_t>(wave) - 16;
  probe.found = probe.as_expected ? "it counts: words that it leads past the end read as 0"
                : inside == 16
                    ? fmt::format("{} of {} words past the end did not read as 0",
                                  wave - 16 - outside, wave - 16)
                    : fmt::format("{} of 16 words before the end were not read", 16 - inside);
  return {};
}

Status inactive_lanes(const Asked& asked, HardwareProbe& probe) {
  std::vector<uint32_t> in(32);
  std::iota(in.begin(), in.end(), 100);
  const auto words = ask(asked, "inactive_lanes", bytes_of(in), in.size());
  if (!words.ok()) return words.status();
  const bool fetched = std::equal(in.begin() + 16, in.end(), words->begin());
  probe.as_expected =
      fetched && std::all_of(words->begin() + 16, words->end(), [](uint32_t x) { return x == 0; });
  probe.found = probe.as_expected
                    ? "their registers are read"
                    : fmt::format("lane 0 read {} instead of {}", words->front(), in[16]);
  return {};
}

Status subnormals(const Asked& asked, HardwareProbe& probe) {
  const auto wave = static_cast<std::size_t>(asked.device->chip.wave_size);
  const auto pair = [](uint32_t bits) { return bits | bits << 16U; };
  // fp16: 2^-24 by 2^15; bf16: 2^-133 by 2^120.
  const std::vector<uint32_t> in{pair(0x0001), pair(0x7800), pair(0x0001), pair(0x7B80)};
  const auto words = ask(asked, "subnormals", bytes_of(in), 2 * wave);
  if (!words.ok()) return words.status();
  const auto products = static_cast<float>(asked.products()->mma_k);
  const float half = std::bit_cast<float>((*words)[0]),
              brain = std::bit_cast<float>((*words)[wave]);
  // CDNA1's and CDNA2's kernels are made for 0 (kFlushesSubnormals).
  const float kept = asked.products()->flushes_subnormals ? 0.0F : 1.0F;
  const auto told = [](const char* dtype, float sum, float exact) {
    return fmt::format("{} {}", dtype,
                       sum == exact ? "kept"
                       : sum == 0   ? "flushed to 0"
                                    : fmt::format("gave {:g} for {:g}", sum, exact));
  };
  probe.as_expected = half == kept * products * 0x1p-9F && brain == kept * products * 0x1p-13F;
  probe.found =
      told("fp16", half, products * 0x1p-9F) + ", " + told("bf16", brain, products * 0x1p-13F);
  return {};
}

Status unaligned(const Asked& asked, HardwareProbe& probe) {
  const auto wave = static_cast<std::size_t>(asked.device->chip.wave_size);
  std::vector<uint8_t> in(2 * wave + 16);
  std::iota(in.begin(), in.end(), uint8_t{1});
  ProbeRun run(asked);
  if (Status status = run.prepare("unaligned", asked.products(), bytes_of(in), 18 * wave + 2, {});
      !status.ok())
    return status;
  if (Status status = run.launch(); !status.ok()) return status;
  const auto bytes = run.answers<uint8_t>();
  if (!bytes.ok()) return bytes.status();
  int right = 0;
  for (std::size_t l = 0; l < wave; ++l)
    right += std::memcmp(bytes->data() + 18 * l + 2, in.data() + 2 * l, 16) == 0 ? 1 : 0;
  probe.as_expected = right == static_cast<int>(wave);
  probe.found = fmt::format("{} of {} lanes' 16 bytes are right", right, wave);
  return {};
}

Status start_order(const Asked& asked, HardwareProbe& probe) {
  constexpr int kWaves = 4;
  const int units = std::max(1, asked.device->properties.compute_units);
  const int64_t workgroups =
      asked.emulates_source() || asked.driver->name() == "emulated-isa" ? 16 : int64_t{64} * units;
  const auto waves = static_cast<std::size_t>(workgroups * kWaves);
  const auto words =
      ask(asked, "start_order", bytes_of(std::vector<uint32_t>(1)), 1 + waves,
          {.workgroups = workgroups, .workgroup_size = kWaves * asked.device->chip.wave_size});
  if (!words.ok()) return words.status();
  if (words->front() != waves)
    return {StatusCode::internal,
            fmt::format("{} of {} waves drew a number", words->front(), waves)};
  // How far a workgroup's first wave starts from its place, in workgroups.
  int64_t farthest = 0;
  std::size_t first_is_first = 0;
  for (int64_t n = 0; n < workgroups; ++n) {
    const auto* drawn = words->data() + 1 + n * kWaves;
    const auto first = std::min_element(drawn, drawn + kWaves);
    first_is_first += first == drawn ? 1 : 0;
    farthest = std::max(farthest, std::abs(static_cast<int64_t>(*first) / kWaves - n));
  }
  // Some dozen workgroups a compute unit may run at once: among those no order is expected.
  probe.as_expected = farthest <= int64_t{16} * units;
  probe.found = fmt::format(
      "of {} workgroups none starts farther than {} from its place; in {} % wave 0 starts first",
      workgroups, farthest, 100 * static_cast<int64_t>(first_is_first) / workgroups);
  return {};
}

struct Entry {
  const char* name;
  const char* decides;
  Question question;
  // Why the device is not asked; empty where it is.
  std::function<std::string(const Asked&)> why_not;
};

std::string not_amd(const Asked& a) {
  return a.device->chip.vendor == gpu::Vendor::amd ? "" : "AMD's kernels alone do that";
}

const std::vector<Entry>& entries() {
  constinit static MadeOnce<const std::vector<Entry>> made;
  return made.get([] {
    return std::vector<Entry>{
        {"buffer_range",
         "whether a buffer's scalar offset counts in its range check, by which keys past the end "
         "read as 0",
         buffer_range, not_amd},
        {"inactive_lanes",
         "whether v_permlanex16 reads lanes that are off, the second guard of a row's sum and "
         "maximum",
         inactive_lanes,
         [](const Asked& a) -> std::string {
           const gpu::Chip& chip = a.device->chip;
           const bool rdna = chip.vendor == gpu::Vendor::amd && chip.wave_size == 32 &&
                             !chip.target->is_portable();
           if (!rdna) return "only RDNA3 and RDNA4 have kernels with the instruction";
           return a.emulates_source()
                      ? "the emulator of source takes an exchange of all lanes alone"
                      : "";
         }},
        {"subnormals",
         "whether fp16 and bf16 numbers below their least normal one count in matrix products",
         subnormals,
         [](const Asked& a) -> std::string {
           return a.products() == nullptr ? "the chip has no kernels with matrix instructions" : "";
         }},
        {"unaligned",
         "whether 16 bytes may be loaded and stored at multiples of 2, as rows with odd strides "
         "are",
         unaligned, not_amd},
        {"start_order",
         "whether workgroups start in the order of their numbers, on which schedules with the "
         "longest first rely",
         start_order, [](const Asked&) { return std::string(); }},
    };
  });
}

}  // namespace

Result<std::vector<HardwareProbe>> probe_hardware(const std::string& device) {
  const Result<Asked> asked = find(device);
  if (!asked.ok()) return asked.status();
  std::vector<HardwareProbe> probes;
  for (const Entry& entry : entries()) {
    HardwareProbe& probe = probes.emplace_back();
    probe.name = entry.name;
    probe.decides = entry.decides;
    probe.found = asked->device == nullptr ? "no GPU: nothing there relies on it"
                                           : entry.why_not(asked.value());
    if (!probe.found.empty()) continue;
    const Status status = entry.question(asked.value(), probe);
    probe.probed = status.ok();
    if (!status.ok()) probe.found = status.message();
  }
  return probes;
}

Result<MatrixRate> matrix_rate(const std::string& device) {
  const Result<Asked> found = find(device);
  if (!found.ok()) return found.status();
  const Asked& asked = found.value();
  const auto unsupported = [&](const char* why) {
    return Status(StatusCode::unsupported, fmt::format("{}: {}", device, why));
  };
  if (asked.device == nullptr) return unsupported("no GPU");
  if (asked.driver->name() != "hip" && asked.driver->name() != "cuda")
    return unsupported("an emulated device has no speed");
  if (asked.products() == nullptr)
    return unsupported("the chip has no kernels with matrix instructions");
  constexpr int kChains = 8, kWaves = 4, kRounds = 5;  // kChains as in kernels/probes/matrix_rate.h
  constexpr int64_t kCount = 4096;
  const int64_t workgroups = int64_t{4} * std::max(1, asked.device->properties.compute_units);
  const auto pair = [](uint32_t bits) { return bits | bits << 16U; };
  ProbeRun run(asked);
  const Grid grid{workgroups, kWaves * asked.device->chip.wave_size, kCount};
  const std::vector<uint32_t> in{pair(0x3E9A), pair(0xBDC5)};  // about 0.30 and -0.096
  if (Status status = run.prepare("matrix_rate", asked.products(), bytes_of(in), 64, grid);
      !status.ok())
    return status;
  const int ordinal = asked.device->ordinal;
  std::array<gpu::Event, 2> events{};
  for (gpu::Event& event : events) {
    const Result<gpu::Event> made = asked.driver->create_event(ordinal);
    if (!made.ok()) return made.status();
    event = made.value();
  }
  const double flops = 2.0 * 16 * 16 * asked.products()->mma_k * kChains * kCount * kWaves *
                       static_cast<double>(workgroups);
  MatrixRate rate{0, fmt::format("bf16 matrix instructions of {}", asked.products()->name)};
  Status status;
  for (int n = 0; n < kRounds && status.ok(); ++n) {  // the first ones wake the clocks
    status = asked.driver->record(ordinal, events[0], nullptr);
    if (status.ok()) status = run.launch();
    if (status.ok()) status = asked.driver->record(ordinal, events[1], nullptr);
    if (!status.ok()) break;
    const Result<float> milliseconds = asked.driver->elapsed(ordinal, events[0], events[1]);
    if (!milliseconds.ok()) status = milliseconds.status();
    if (milliseconds.ok())
      rate.tflops =
          std::max(rate.tflops, flops / (1e-3 * static_cast<double>(milliseconds.value())) / 1e12);
  }
  for (const gpu::Event& event : events) asked.driver->destroy_event(ordinal, event);
  if (!status.ok()) return status;
  return rate;
}

}  // namespace fulmen
