#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "fulmen/compile.h"
#include "fulmen/printable.h"
#include "fulmen/read_file.h"
#include "runtime/platform/system.h"
#include "tools/commands.h"
#include "tools/compile/sparse_progress.h"
#include "tools/files/output_file.h"

namespace fulmen::tools {
namespace {

struct CompileArguments {
  std::vector<std::string> archs;
  bool report = false, check = false;
  std::string json, pack;
  CompileKernelsOptions options;
};

std::string known(int value) { return value < 0 ? "-" : std::to_string(value); }

void print_head() {
  fmt::print(
      "{:8} {:44} {:>5} {:>5} {:>6} {:>6} {:>7} {:>5} {:>6} | {:>6} {:>5} {:>5} {:>4} {:>4} "
      "{:>9}\n",
      "arch", "kernel", "regs", "acc", "LDS", "spills", "scratch", "waves", "bytes", "matrix",
      "VALU", "trans", "LDS", "mem", "VALU/512m");
}

void print_row(const KernelReport& r) {
  const LoopCounts& c = r.loop;
  std::string loop = fmt::format(
      "{:>6} {:>5} {:>5} {:>4} {:>4} {:>9}", c.matrix, c.vector, c.transcendental, c.lds, c.memory,
      c.matrix_products > 0 ? std::to_string(512 * c.vector / c.matrix_products) : "-");
  if (!r.loop_missing.empty())
    loop = fmt::format("{:>6} {:>5} {:>5} {:>4} {:>4} {:>9}", "-", "-", "-", "-", "-", "-");
  fmt::print("{:8} {:44} {:>5} {:>5} {:>6} {:>6} {:>7} {:>5} {:>6} | {}\n", r.arch, r.kernel,
             known(r.registers), known(r.accumulators), r.lds_bytes, known(r.spills),
             known(r.scratch_bytes), known(r.occupancy), r.code_bytes, loop);
  if (!r.serialised.empty())
    fmt::print("         each product waits for the one before it: {}\n", r.serialised);
}

nlohmann::json json_of(const KernelReport& r) {
  const LoopCounts& c = r.loop;
  return {{"arch", r.arch},
          {"kernel", r.kernel},
          {"workgroup_size", r.workgroup_size},
          {"registers", r.registers},
          {"accumulators", r.accumulators},
          {"lds_bytes", r.lds_bytes},
          {"spills", r.spills},
          {"scratch_bytes", r.scratch_bytes},
          {"occupancy", r.occupancy},
          {"code_bytes", r.code_bytes},
          {"serialised", r.serialised},
          {"findings", r.findings},
          {"loop",
           {{"matrix", c.matrix},
            {"matrix_products", c.matrix_products},
            {"vector", c.vector},
            {"transcendental", c.transcendental},
            {"lds", c.lds},
            {"memory", c.memory},
            {"scalar", c.scalar}}}};
}

// The kernels of a folder in one file, for add_prebuilt_kernels(): their files one after another,
// in the order of their names.
Status write_pack(const std::string& folder, const std::string& path) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == ".kernel")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // the most for add_prebuilt_kernels()
  std::string pack;
  for (const std::filesystem::path& one : files) {
    const Result<std::optional<std::string>> kernel = read_regular_file(
        one.string(), kMostBytes - std::min(kMostBytes, pack.size()), FileTrust::given);
    const std::string why = !kernel.ok() ? kernel.status().message() : !*kernel ? "it is gone" : "";
    if (!why.empty())
      return {StatusCode::unavailable, fmt::format("{}: {}", printable(one.string()), why)};
    pack += **kernel;
  }
  fmt::print("{} kernels, {} bytes, in {}\n", files.size(), pack.size(), printable(path));
  return write_text_file(path, pack);
}

// Reports kernels that spill registers. They run, so that is no failure.
class Spilled {
 public:
  void add(const KernelReport& r) {
    if (r.spills <= 0 && r.scratch_bytes <= 0) return;
    if (!r.arch.starts_with("gfx")) {
      ++nvidia_;
    } else if (r.scratch_bytes > 0) {
      ++in_scratch_;
      amd_ += fmt::format("  {} {}: {} registers spilled, {} bytes of scratch a lane\n", r.arch,
                          r.kernel, r.spills, r.scratch_bytes);
    } else {
      ++in_lanes_;
      amd_ += fmt::format("  {} {}: {} scalar registers in lanes of vector registers\n", r.arch,
                          r.kernel, r.spills);
    }
  }
  void print() const {
    if (nvidia_ > 0)
      fmt::print(
          "{} kernels for NVIDIA spill: the fastest that were measured, see docs/lab/README.md\n",
          nvidia_);
    if (!amd_.empty()) {
      fmt::print(
          "{} kernels are right and run, slower than with more registers, as they use scratch; {} "
          "keep scalars in lanes:\n{}",
          in_scratch_, in_lanes_, amd_);
    }
  }

 private:
  int nvidia_ = 0, in_scratch_ = 0, in_lanes_ = 0;
  std::string amd_;
};

Status compile(const CompileArguments& arguments) {
  // Errors that would appear after minutes of work are reported before.
  for (const std::string& arch : arguments.archs) {
    if (Status status = check_arch(arch); !status.ok()) return status;
  }
  for (const std::string& path : {arguments.json, arguments.pack}) {
    if (Status status = check_writable(path); !status.ok()) return status;
  }
  if (arguments.options.out_folder == "-")
    return {StatusCode::invalid_argument, "--out -: a folder is needed (./- for this one)"};
  const bool terminal = platform::is_terminal(2);
  nlohmann::json rows = nlohmann::json::array();
  std::string missing, wrong;
  std::size_t checked = 0;
  Spilled spilled;
  if (arguments.report) print_head();
  for (const std::string& arch : arguments.archs) {
    CompileKernelsOptions options = arguments.options;
    SparseProgress progress(
        [&arch](const std::string& text) { fmt::print(stderr, "fulmen: {}: {}\n", arch, text); });
    // On a terminal each kernel is named while it is compiled.
    if (!terminal)
      options.on_kernel = [&progress](std::size_t done, std::size_t of) {
        progress.tell(done, of);
      };
    const Result<std::vector<KernelReport>> reports = compile_kernels(arch, options);
    if (!reports.ok()) return reports.status();
    for (const KernelReport& r : reports.value()) {
      if (arguments.report) print_row(r);
      spilled.add(r);
      for (const std::string& finding : r.findings)
        wrong += fmt::format("\n  {} {}: {}", r.arch, r.kernel, finding);
      checked += r.arch.starts_with("gfx") && r.loop_missing.empty() ? 1 : 0;
      if (!r.loop_missing.empty()) missing = fmt::format("{}: {}", r.arch, r.loop_missing);
      rows.push_back(json_of(r));
    }
    if (!arguments.report) fmt::print("{}: {} kernels compiled\n", arch, reports.value().size());
  }
  spilled.print();
  if (arguments.report && !missing.empty()) fmt::print("- is not known; {}\n", missing);
  // A command that fails leaves no report.
  if (Status status = flush_standard_output(); !status.ok()) return status;
  if (!arguments.json.empty()) {
    if (Status status = write_text_file(arguments.json, rows.dump(2) + "\n"); !status.ok())
      return status;
  }
  if (!arguments.pack.empty() && wrong.empty()) {
    if (Status status = write_pack(arguments.options.out_folder, arguments.pack); !status.ok())
      return status;
  }
  if (!wrong.empty())
    return {StatusCode::internal,
            "the compiler's machine code is wrong, such a kernel is not used:" + wrong};
  if (!arguments.check) return {};
  if (!missing.empty())
    return {StatusCode::unavailable,
            "--check reads machine code, which is not possible here: " + missing};
  fmt::print("{} AMD kernels checked: nothing wrong in their machine code\n", checked);
  return {};
}

}  // namespace

Command compile_command(CLI::App& app) {
  auto arguments = std::make_shared<CompileArguments>();
  CLI::App* parser = app.add_subcommand(
      "compile", "compile GPU kernels without a GPU, and report what the compiler made of them");
  parser
      ->add_option("--arch", arguments->archs,
                   "chips, ',' between them: gfx1100,gfx1201,gfx942,sm_80,sm_90a")
      ->delimiter(',')
      ->required();
  CLI::Option* all = parser->add_flag("--all", arguments->options.all,
                                      "every shipped configuration, not only the main ones");
  CLI::Option* pairs =
      parser
          ->add_flag("--pairs", arguments->options.pairs,
                     "instead: ordinary problems with every feature, and with every two of them")
          ->excludes(all);
  parser
      ->add_flag("--common", arguments->options.common,
                 "instead: what models and engines call most, which packages of prebuilt kernels "
                 "have")
      ->excludes(all)
      ->excludes(pairs);
  parser->add_option("--only", arguments->options.only,
                     "of these, kernels in whose names all these words are: \"prefill d128\"");
  parser->add_flag("--report", arguments->report,
                   "a table: registers, LDS, spills, occupancy, and the instructions of the inner "
                   "loop (VALU/512m: vector instructions "
                   "for 512 matrix instructions of 16x16x16)");
  parser->add_flag("--check", arguments->check,
                   "fail where the machine code of AMD kernels cannot be read (llvm-objdump); what "
                   "is found wrong in it fails always");
  CLI::Option* out = parser->add_option(
      "--out", arguments->options.out_folder,
      "write prebuilt kernels to that folder, for FULMEN_KERNEL_PATH and add_prebuilt_kernels()");
  parser
      ->add_option(
          "--pack", arguments->pack,
          "then write all kernels of --out's folder to one file, for add_prebuilt_kernels()")
      ->needs(out);
  parser->add_option("--json", arguments->json, "write the report as JSON");
  return {parser, [arguments] { return compile(*arguments); }};
}

}  // namespace fulmen::tools
