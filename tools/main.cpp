// The fulmen program: devices, run, explain, verify, bench, compile, counts, cache, tune, doctor,
// selftest.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "fulmen/compile.h"
#include "fulmen/printable.h"
#include "fulmen/version.h"
#include "runtime/platform/system.h"
#include "tools/commands.h"
#include "tools/files/output_file.h"
#include "tools/platform/arguments.h"
#include "tools/signals.h"

namespace {

using fulmen::Status;
using fulmen::StatusCode;

int report(const Status& status) {
  fulmen::tools::wait_if_a_signal_ends_the_process();
  if (status.ok()) return 0;
  // fmt::print would throw where the standard error is closed or full. The exit status still tells.
  std::fputs(fmt::format("fulmen: {}\n", status.message()).c_str(), stderr);
  switch (status.code()) {
    case StatusCode::verification_failed:
    case StatusCode::out_of_memory:
    case StatusCode::internal:
      return 1;
    default:
      return 2;
  }
}

// An empty value is what a script's unset variable leaves: taken as "not given" it would, say, drop
// a mask without a word.
Status check_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool assigned = argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (!argument.empty() && !assigned) continue;
    const std::string option = assigned ? argument.substr(0, argument.size() - 1) : argv[i - 1];
    return {StatusCode::invalid_argument,
            fmt::format("{}: an empty value is given: leave the option out, or say one", option)};
  }
  return {};
}

// The command's own failure takes precedence.
int finish(const Status& status) {
  const Status flushed = fulmen::tools::flush_standard_output();
  return report(status.ok() ? flushed : status);
}

int run(int argc, char** argv) {
  if (Status status = check_values(argc, argv); !status.ok()) return report(status);
  CLI::App app{"Exact attention as one fused operation", "fulmen"};
  app.require_subcommand(0, 1);  // a second one would be ignored
  app.set_version_flag("--version", std::string("fulmen ") + fulmen::version());
  const std::array commands{
      fulmen::tools::devices_command(app), fulmen::tools::run_command(app),
      fulmen::tools::explain_command(app), fulmen::tools::verify_command(app),
      fulmen::tools::bench_command(app),   fulmen::tools::compile_command(app),
      fulmen::tools::cache_command(app),   fulmen::tools::tune_command(app),
      fulmen::tools::doctor_command(app),  fulmen::tools::selftest_command(app),
      fulmen::tools::counts_command(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    app.exit(request);  // --help, --version
    return finish({});
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> unknown = app.remaining(true);
    std::string list;
    for (const std::string& argument : unknown) list += " " + fulmen::printable(argument);
    return report(
        {StatusCode::invalid_argument,
         fmt::format("not an argument of this command:{} (--help tells which are)", list)});
  } catch (const CLI::ConversionError& error) {
    return report(
        {StatusCode::invalid_argument, fmt::format("{}: it is too large, or not such a number",
                                                   fulmen::printable(error.what()))});
  } catch (const CLI::ParseError& error) {
    return report({StatusCode::invalid_argument, fulmen::printable(error.what())});
  }
  for (const auto& command : commands) {
    if (command.parser->parsed()) return finish(command.run());
  }
  return report({StatusCode::invalid_argument,
                 "a subcommand is needed: devices, run, explain, verify, bench, compile, counts, "
                 "cache, tune, doctor or selftest "
                 "(--help tells more)"});
}

// Shows a line on a terminal while a kernel is compiled.
void show_compilation(void* /*context*/, const char* kernel, const char* arch, bool done,
                      double /*seconds*/) {
  if (done) {
    fmt::print(stderr, "\r\x1b[K");
  } else {
    fmt::print(stderr, "\r\x1b[Kcompiling {} for {} ...", kernel, arch);
  }
  std::fflush(stderr);
}

[[maybe_unused]] void set_default(const char* name, const char* value) {
  if (!fulmen::platform::environment_variable(name))
    fulmen::platform::set_environment_variable(name, value);
}

// Makes the baseline as fast as it can be: OpenBLAS before 0.3.22 takes Zen 4 and 5 for processors
// without AVX-512 and runs at half their speed. What the user says takes precedence.
void let_openblas_use_avx512() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0)
    set_default("OPENBLAS_CORETYPE", "SkylakeX");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  try {
    fulmen::tools::watch_signals();
    let_openblas_use_avx512();
    if (fulmen::platform::is_terminal(2)) fulmen::set_compile_observer(show_compilation, nullptr);
    std::vector<std::string> arguments = fulmen::tools::program_arguments(argc, argv);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    return run(static_cast<int>(arguments.size()), pointers.data());
  } catch (const std::bad_alloc&) {
    return report({StatusCode::out_of_memory, "no memory"});
  } catch (const std::system_error& error) {  // thrown by fmt::print
    return report({StatusCode::unavailable, error.what()});
  } catch (const std::exception& error) {
    return report({StatusCode::internal, error.what()});
  }
}
