// The subcommands of the fulmen program.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "fulmen/status.h"

namespace fulmen::tools {

// A subcommand's parser and what it does once its options are read. A Status that is not ok becomes
// one sentence on stderr and exit 1 (verification failed, no memory, a defect) or 2 (everything
// that the caller can mend).
struct Command {
  CLI::App* parser = nullptr;
  std::function<Status()> run;
};

Command devices_command(CLI::App& app);
Command run_command(CLI::App& app);
Command explain_command(CLI::App& app);
Command verify_command(CLI::App& app);
Command bench_command(CLI::App& app);
Command compile_command(CLI::App& app);
Command counts_command(CLI::App& app);
Command cache_command(CLI::App& app);
Command tune_command(CLI::App& app);
Command doctor_command(CLI::App& app);
Command selftest_command(CLI::App& app);

}  // namespace fulmen::tools
