// run_kernel DESCRIPTION.json: runs AMD code objects of any origin on the emulator of machine code,
// writes the buffers that the description wants and prints counts as JSON (bench/amd/README.md).
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "bench/amd/run_kernel/report.h"
#include "fulmen/printable.h"

namespace {

using namespace fulmen::run_kernel;

fulmen::Status run(const std::string& path) {
  const auto description = read_description(path);
  if (!description.ok()) return description.status();
  auto buffers = Buffers::make(description->buffers);
  if (!buffers.ok()) return buffers.status();
  std::vector<RanLaunch> launches;
  for (const KernelLaunch& launch : description->launches) {
    auto ran = run_launch(launch, description->arch, buffers.value());
    if (!ran.ok()) return ran.status();
    launches.push_back(std::move(ran).value());
  }
  fmt::print("{}", report(description.value(), launches));
  return buffers->save(description->buffers);
}

int fail(const std::string& why) {
  fmt::print(stderr, "run_kernel: {}\n", why);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fail("one argument is needed, the JSON file of what to run");
  try {
    const fulmen::Status status = run(argv[1]);
    return status.ok() ? 0 : fail(status.message());
  } catch (const std::exception& error) {
    return fail(fulmen::printable(error.what()));
  }
}
