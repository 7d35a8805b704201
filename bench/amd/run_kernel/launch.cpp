#include "bench/amd/run_kernel/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "emulator/machine_code/decoding/decode.h"
#include "emulator/machine_code/hidden_arguments.h"
#include "fulmen/printable.h"
#include "tools/files/output_file.h"

namespace fulmen::run_kernel {
namespace {

Status refused(std::string why) { return {StatusCode::invalid_argument, std::move(why)}; }

Result<gpu::AmdKernelMetadata> find_kernel(const KernelLaunch& launch,
                                           std::span<const std::byte> code) {
  const auto in_file = [&](const std::string& why) {
    return refused(fmt::format("{}: {}", printable(launch.code), why));
  };
  const auto kernels = gpu::read_amd_metadata(code);
  if (!kernels.ok()) return in_file(kernels.status().message());
  std::string names;
  for (const gpu::AmdKernelMetadata& kernel : kernels.value()) {
    if (launch.kernel.empty() || kernel.name == launch.kernel) return kernel;
    names += (names.empty() ? "" : ", ") + printable(kernel.name);
  }
  return in_file(fmt::format("no kernel \"{}\" in it: it has {}", printable(launch.kernel), names));
}

// target: "amdgcn-amd-amdhsa--gfx942:xnack-", "" where the code object does not say.
bool is_for(std::string_view target, std::string_view arch) {
  const std::string_view triple = target.substr(0, target.find(':'));
  return triple.empty() || triple.substr(triple.rfind('-') + 1) == arch;
}

// Where the caller's arguments are, by the metadata.
std::vector<gpu::AmdArgument> explicit_arguments(const gpu::AmdKernelMetadata& kernel) {
  std::vector<gpu::AmdArgument> list;
  std::copy_if(kernel.arguments.begin(), kernel.arguments.end(), std::back_inserter(list),
               [](const gpu::AmdArgument& a) { return !a.kind.starts_with("hidden_"); });
  return list;
}

Result<std::vector<std::byte>> make_arguments(const KernelLaunch& launch,
                                              const gpu::AmdKernelMetadata& kernel,
                                              const Buffers& buffers) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(kernel.argument_bytes), std::byte{0xFF});
  const std::vector<gpu::AmdArgument> places = explicit_arguments(kernel);
  const bool placed = std::any_of(launch.arguments.begin(), launch.arguments.end(),
                                  [](const Argument& a) { return a.offset.has_value(); });
  if (!placed && places.size() != launch.arguments.size()) {
    return refused(fmt::format("{} arguments: {} takes {}", launch.arguments.size(),
                               printable(kernel.name), places.size()));
  }
  for (std::size_t n = 0; n < launch.arguments.size(); ++n) {
    const Argument& a = launch.arguments[n];
    std::vector<std::byte> value = a.value;
    if (!a.buffer.empty()) {
      const uint64_t address = buffers.address(a.buffer) + static_cast<uint64_t>(a.plus);
      std::memcpy(value.data(), &address, sizeof address);
    }
    if (placed && !a.offset) return refused(fmt::format("argument {} has no offset", n));
    if (!placed && places[n].bytes != static_cast<int64_t>(value.size())) {
      return refused(fmt::format("argument {} has {} bytes: {} takes {}", n, value.size(),
                                 printable(kernel.name), places[n].bytes));
    }
    const auto at = static_cast<std::size_t>(placed ? *a.offset : places[n].offset);
    if (at > bytes.size() || value.size() > bytes.size() - at) {
      return refused(fmt::format("argument {} ends at byte {}: {} has {} bytes of them", n,
                                 at + value.size(), printable(kernel.name), bytes.size()));
    }
    std::copy(value.begin(), value.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  gpu::isa::write_hidden_arguments(kernel.arguments, launch.grid, launch.dynamic_lds_bytes, bytes);
  return bytes;
}

}  // namespace

Result<RanLaunch> run_launch(const KernelLaunch& launch, const std::string& arch,
                             Buffers& buffers) {
  const Result<std::string> file = tools::read_text_file("the code object", launch.code);
  if (!file.ok()) return file.status();
  const std::span code = std::as_bytes(std::span(file.value()));
  const Result<gpu::AmdKernelMetadata> kernel = find_kernel(launch, code);
  if (!kernel.ok()) return kernel.status();
  if (!is_for(kernel->target, arch)) {
    return refused(fmt::format("{}: it is for {}, arch is {}", printable(launch.code),
                               printable(kernel->target), printable(arch)));
  }
  const auto program =
      gpu::isa::read_code_object(code, arch, {.kernel = kernel->name, .hand_written = true});
  if (!program.ok()) return program.status();
  const Result<std::vector<std::byte>> arguments = make_arguments(launch, kernel.value(), buffers);
  if (!arguments.ok()) return arguments.status();
  const gpu::isa::LaunchData data = gpu::isa::launch_data(program.value(), arguments.value(),
                                                          launch.grid, launch.dynamic_lds_bytes);
  RanLaunch ran{.kernel = kernel.value(),
                .lds_bytes = program->lds_bytes + launch.dynamic_lds_bytes,
                .waves = launch.grid.waves(program->wave_size),
                .workgroups = launch.grid.count(),
                .times = launch.times,
                .work = {},
                .time = {}};
  std::vector<int64_t> ids = launch.workgroups;
  if (ids.empty()) {
    ids.resize(static_cast<std::size_t>(launch.grid.count()));
    std::iota(ids.begin(), ids.end(), 0);
  }
  gpu::MemoryMap memory = buffers.map();
  std::vector<std::vector<gpu::isa::TraceStep>> trace;
  for (const int64_t id : ids) {
    // The one in the middle stands for all: under a mask it is of average length, but for half a
    // tile.
    ran.work.trace = id == ids[ids.size() / 2] ? &trace : nullptr;
    if (ran.work.trace != nullptr) trace.clear();
    std::string error = gpu::isa::run_workgroup(program.value(), gpu::isa::Schedule{}, id, data,
                                                memory, ran.counts, &ran.work);
    if (!error.empty()) return Status(StatusCode::internal, std::move(error));
  }
  ran.work.trace = nullptr;
  ran.time = time_launch(program.value(), trace, ran.lds_bytes,
                         static_cast<double>(ids.size()) * launch.times);
  return ran;
}

}  // namespace fulmen::run_kernel
