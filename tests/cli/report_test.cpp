// devices, explain, verify and bench: what they print and write.
#include <nlohmann/json.hpp>
#include <set>

#include "program.h"
#include "tools/bench/measure/measure.h"
#include "tools/commands.h"

namespace fulmen::test {
namespace {

class ReportTest : public ProgramTest {};

TEST_F(ReportTest, DevicesNameTheCpuAndItsKernels) {
  const Outcome brief = fulmen({"devices"});
  ASSERT_EQ(brief.exit_code, 0) << brief.err;
  EXPECT_LT(std::count(brief.out.begin(), brief.out.end(), '\n'), 40) << brief.out;
  const Outcome outcome = fulmen({"devices", "--all"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"cpu", "chip", "usable", "cpu.standard.plain", "cpu.reference.backward",
                           "backward, dropout"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
  }
}

TEST_F(ReportTest, ExplainSaysTheSameByNumbersAndByFiles) {
  std::vector<std::string> by_files{"explain"};
  for (const std::string& argument : example_inputs()) by_files.push_back(argument);
  const Outcome files = fulmen(by_files);
  const Outcome numbers = fulmen({"explain", "--batch", "2", "--seqlen-q", "44", "--heads", "6",
                                  "--head-dim", "32", "--keep-shape", "2,1,1,44"});
  ASSERT_EQ(files.exit_code, 0) << files.err;
  ASSERT_EQ(numbers.exit_code, 0) << numbers.err;
  EXPECT_EQ(files.out, numbers.out);
  EXPECT_NE(numbers.out.find("cpu.reference.double"), std::string::npos)
      << "every other candidate has its reason:\n"
      << numbers.out;
}

TEST_F(ReportTest, VerifyTabulatesAndRepeatsBySeed) {
  const std::vector<std::string> arguments{
      "verify",   "--dtype", "fp16",   "--kernel", "cpu.standard.plain",
      "--random", "8",       "--seed", "7"};
  const Outcome outcome = fulmen(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("--seed 7"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("cpu.standard.plain"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos) << "plain lines in a pipe";
  EXPECT_EQ(fulmen(arguments).out, outcome.out);
}

TEST_F(ReportTest, BenchWritesEveryFieldOfARealCase) {
  const std::vector<std::string> options{"bench",     "--suite", "real",    "--data", example(""),
                                         "--seconds", "0.01",    "--dtype", "fp32",   "--json",
                                         "b.json",    "--csv",   "b.csv"};
  const Outcome outcome = fulmen(options);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos) << "plain lines in a pipe";
  EXPECT_NE(outcome.out.find("peak fp32 FMA"), std::string::npos) << outcome.out;
  EXPECT_EQ(files(), (std::vector<std::string>{"b.csv", "b.json"}));

  const auto rows = nlohmann::json::parse(read_text(path("b.json")));
  ASSERT_TRUE(rows.is_array());
  ASSERT_EQ(rows.size(), 1U);
  const nlohmann::json& row = rows[0];
  const std::set<std::string> fields{"suite",
                                     "case",
                                     "device",
                                     "kernel",
                                     "backward_kernel",
                                     "dtype",
                                     "batch",
                                     "heads",
                                     "kv_heads",
                                     "seqlen_q",
                                     "seqlen_k",
                                     "head_dim",
                                     "causal",
                                     "bias",
                                     "median_s",
                                     "min_s",
                                     "tflops",
                                     "gb_s",
                                     "ceiling",
                                     "backward_s",
                                     "backward_tflops",
                                     "speedup",
                                     "standard_s",
                                     "standard_kernel",
                                     "verified",
                                     "verified_how",
                                     "extra_bytes",
                                     "standard_extra_bytes",
                                     "share_of_ceiling",
                                     "mask"};
  std::set<std::string> found;
  for (const auto& item : row.items()) found.insert(item.key());
  EXPECT_EQ(found, fields);
  EXPECT_EQ(row["suite"], "real");
  EXPECT_EQ(row["dtype"], "fp32");
  EXPECT_EQ(row["batch"], 2);
  EXPECT_EQ(row["heads"], 6);
  EXPECT_EQ(row["seqlen_k"], 44);
  EXPECT_EQ(row["head_dim"], 32);
  EXPECT_EQ(row["verified"], true);
  EXPECT_EQ(row["verified_how"], "all");
  for (const char* field :
       {"backward_kernel", "backward_s", "backward_tflops", "standard_extra_bytes"}) {
    EXPECT_TRUE(row[field].is_null()) << field << " is of training";
  }
  EXPECT_GT(row["min_s"], 0.0);
  EXPECT_GE(row["median_s"], row["min_s"]);
  EXPECT_NEAR(row["share_of_ceiling"].get<double>(),
              row["tflops"].get<double>() / row["ceiling"].get<double>(), 1e-9);
  EXPECT_NEAR(row["speedup"].get<double>(),
              row["standard_s"].get<double>() / row["min_s"].get<double>(), 1e-9);

  const std::string csv = read_text(path("b.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2) << csv;
  EXPECT_EQ(csv.rfind("suite,case,device,kernel,backward_kernel,dtype,", 0), 0U) << csv;
}

TEST_F(ReportTest, BenchTakesValuesOfTheirOwnHeadDim) {
  const std::vector<float> ones(2 * 20 * 4 * 32, 1.0F);
  for (const char* name : {"q.npy", "k.npy"})
    write_array(name, DType::fp32, {2, 20, 4, 16}, ones.data());
  write_array("v.npy", DType::fp32, {2, 20, 4, 32}, ones.data());
  write_array("keep.npy", DType::boolean, {2, 20}, std::string(40, '\1').data());
  const Outcome outcome =
      fulmen({"bench", "--suite", "real", "--data", ".", "--seconds", "0.01", "--dtype", "fp32"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

// Verification in each timed call would dominate the time. The test runs in this process, to see
// that it is off.
TEST_F(ReportTest, BenchTimesNoVerification) {
  ::setenv("FLASH_ATTENTION_VERIFY", "1", 1);
  CLI::App app;
  const tools::Command command = tools::bench_command(app);
  // The last one first.
  app.parse(std::vector<std::string>{"fp32", "--dtype", "0.01", "--seconds", example(""), "--data",
                                     "real", "--suite", "bench"});
  ::testing::internal::CaptureStdout();
  const Status status = command.run();
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::getenv("FLASH_ATTENTION_VERIFY"), nullptr);
  ::unsetenv("FLASH_ATTENTION_VERIFY");
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_NE(out.find("FLASH_ATTENTION_VERIFY is not obeyed"), std::string::npos) << out;
}

TEST_F(ReportTest, TrainingStandsBesideStandardAttention) {
  tools::BenchSettings settings;
  settings.seconds = 0.02;
  settings.kernel = "cpu.backward.scalar";  // forces the pass that it computes
  tools::BenchMeter meter(settings, {}, 1);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Result<tools::BenchRow> row = meter.measure({.suite = "training",
                                                       .name = "a layer",
                                                       .dtype = dtype,
                                                       .batch = 2,
                                                       .seqlen_q = 100,
                                                       .seqlen_k = 100,
                                                       .heads = 2,
                                                       .kv_heads = 1,
                                                       .head_dim = 32,
                                                       .causal = true,
                                                       .training = true});
    ASSERT_TRUE(row.ok()) << row.status().message();
    EXPECT_TRUE(row->verified) << row->verify_message;
    EXPECT_EQ(row->backward_kernel, "cpu.backward.scalar");
    EXPECT_NE(row->kernel, "");
    const bool blas = dtype == DType::fp32 && row->standard_kernel == "cpu.standard.blas";
    EXPECT_TRUE(blas || row->standard_kernel == "cpu.standard.plain")
        << row->standard_kernel << row->standard_note;
    EXPECT_EQ(row->standard_refused.empty(), blas) << row->standard_refused;
    EXPECT_GT(row->standard_s, 0);
    EXPECT_NEAR(row->speedup, row->standard_s / row->min_s, 1e-9);
    EXPECT_GT(row->standard_extra_bytes, 0U);
    // 2 flops of 2 + 5 products of 32 for the 5050 pairs that each of 4 heads attends.
    EXPECT_NEAR(row->tflops * row->min_s * 1e12, 2.0 * 7 * 32 * 5050 * 4, 1);
    EXPECT_NEAR(row->backward_tflops * row->backward_s * 1e12, 2.0 * 5 * 32 * 5050 * 4, 1);
  }
}

TEST_F(ReportTest, BenchNamesACaseThatIsLeftOut) {
  const Outcome outcome = fulmen(
      {"bench", "--suite", "decode", "--dtype", "fp32", "--max-gb", "0.001", "--json", "b.json"});
  expect_one_sentence(outcome, "no case");
  EXPECT_NE(outcome.out.find("left out: its tensors are"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace fulmen::test
