// `fulmen bench --problem`, and the bool masks of the suites.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "program.h"
#include "tools/bench/case_data.h"

namespace fulmen::test {
namespace {

class BenchProblem : public ProgramTest {
 protected:
  // The row of `bench --problem` with these options, compared with what explain says for the same
  // options.
  nlohmann::json row_of(const std::vector<std::string>& problem) const {
    std::vector<std::string> bench{"bench", "--problem", "--seconds", "0.01", "--json", "b.json"},
        explain{"explain"};
    bench.insert(bench.end(), problem.begin(), problem.end());
    explain.insert(explain.end(), problem.begin(), problem.end());
    const Outcome timed = fulmen(bench), explained = fulmen(explain);
    EXPECT_EQ(timed.exit_code, 0) << timed.out << timed.err;
    EXPECT_EQ(explained.exit_code, 0) << explained.err;
    const std::string first_line = explained.out.substr(0, explained.out.find('\n'));
    EXPECT_NE(timed.out.find(first_line), std::string::npos) << first_line << " is not in:\n"
                                                             << timed.out;
    const auto rows = nlohmann::json::parse(read_text(path("b.json")));
    EXPECT_EQ(rows.size(), 1U);
    return rows[0];
  }
};

// Formats of k and v by numbers: the plan and the row are those of what is stored.
TEST_F(BenchProblem, TimesQuantizedKeysAndValues) {
  const std::vector<std::string> shape{"--batch", "1", "--seqlen-q", "2", "--seqlen-k", "300",
                                       "--heads", "4", "--kv-heads", "2", "--head-dim", "64"};
  for (const auto& [k, v] : {std::pair<std::string, std::string>{"q8_0", ""},
                             {"int8", "int8"},
                             {"fp8_e4m3", "q4_0"},
                             {"", "q5_1"}}) {
    std::vector<std::string> problem = shape;
    if (!k.empty()) problem.insert(problem.end(), {"--k-format", k});
    if (!v.empty()) problem.insert(problem.end(), {"--v-format", v});
    const nlohmann::json row = row_of(problem);
    EXPECT_TRUE(row["verified"].get<bool>()) << row.dump();
    problem.insert(problem.begin(), "explain");
    const std::string said = fulmen(problem).out;
    for (const std::string& format : {k, v}) {
      EXPECT_NE(said.find(format.empty() ? "fp32" : format), std::string::npos) << said;
    }
  }
}

// Latent attention by numbers: the values are no memory of their own.
TEST_F(BenchProblem, TimesValuesInKeys) {
  const std::vector<std::string> problem{
      "--seqlen-q", "1",   "--seqlen-k",   "200", "--heads",         "16", "--kv-heads", "1",
      "--head-dim", "576", "--head-dim-v", "512", "--values-in-keys"};
  EXPECT_TRUE(row_of(problem)["verified"].get<bool>());
  std::vector<std::string> explain = problem;
  explain.insert(explain.begin(), "explain");
  EXPECT_NE(fulmen(explain).out.find("values_in_keys"), std::string::npos);
  explain.insert(explain.end(), {"--v-format", "int8"});
  const Outcome refused = fulmen(explain);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.err.find("--k-format and --v-format must be the same"), std::string::npos)
      << refused.err;
}

TEST_F(BenchProblem, TimesAnyShape) {
  const nlohmann::json row = row_of({"--batch",
                                     "3",
                                     "--seqlen-q",
                                     "40",
                                     "--seqlen-k",
                                     "50",
                                     "--heads",
                                     "4",
                                     "--kv-heads",
                                     "2",
                                     "--head-dim",
                                     "24",
                                     "--causal",
                                     "--head-dim-v",
                                     "16",
                                     "--bias-shape",
                                     "1,4,40,50",
                                     "--keep-shape",
                                     "3,1,1,50",
                                     "--with-sinks",
                                     "--with-alibi",
                                     "--softcap",
                                     "5",
                                     "--layout",
                                     "bhsd",
                                     "--with-lse",
                                     "--dtype",
                                     "bf16",
                                     "--threads",
                                     "1"});
  EXPECT_EQ(row["suite"], "problem");
  EXPECT_EQ(row["case"], "3 x 4/2x24,16 S40,50 causal bias mask alibi sinks softcap lse");
  EXPECT_EQ(row["dtype"], "bf16");
  EXPECT_EQ(row["batch"], 3);
  EXPECT_EQ(row["seqlen_k"], 50);
  EXPECT_EQ(row["kv_heads"], 2);
  EXPECT_TRUE(row["causal"].get<bool>());
  EXPECT_TRUE(row["verified"].get<bool>());
  EXPECT_EQ(row["verified_how"], "all");
  EXPECT_GT(row["min_s"].get<double>(), 0);
}

TEST_F(BenchProblem, TimesGradients) {
  const nlohmann::json row =
      row_of({"--seqlen-q", "33", "--heads", "2", "--head-dim", "16", "--backward", "--bias-shape",
              "1,2,33,33", "--dropout", "0.25", "--kernel", "cpu.reference.backward"});
  EXPECT_EQ(row["backward_kernel"], "cpu.reference.backward");
  EXPECT_GT(row["backward_s"].get<double>(), 0);
  EXPECT_TRUE(row["verified"].get<bool>());
}

TEST_F(BenchProblem, TimesFiles) {
  const nlohmann::json row = row_of(example_inputs());
  EXPECT_EQ(row["case"], "2 x 6x32 S44 mask");
  EXPECT_TRUE(row["verified"].get<bool>());
}

// A few queries over many keys are rated by the bytes of keys and values, as in the suite of
// decode.
TEST_F(BenchProblem, FewQueriesAreDecode) {
  const nlohmann::json row = row_of({"--seqlen-q", "1", "--seqlen-k", "512", "--heads", "8",
                                     "--kv-heads", "2", "--head-dim", "64"});
  const double bytes = 512.0 * 2 * 2 * 64 * 4;
  EXPECT_NEAR(row["gb_s"].get<double>() * row["min_s"].get<double>() * 1e9, bytes, 1e-3 * bytes);
}

TEST_F(BenchProblem, BadInputIsNamed) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> all{"bench"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::vector<std::string> numbers{"--problem", "--seqlen-q", "8", "--heads",
                                         "2",         "--head-dim", "8"};
  const auto and_numbers = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = with(numbers);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_one_sentence(fulmen(with({"--seqlen-q", "8"})),
                      "--seqlen-q: it describes a problem, which is timed with --problem");
  expect_one_sentence(fulmen(with({"--causal", "--suite", "boards"})),
                      "--causal: it describes a problem");
  expect_one_sentence(fulmen(with({"--problem"})), "at least --seqlen-q, --heads and --head-dim");
  expect_one_sentence(fulmen(and_numbers({"--suite", "boards"})), "--suite beside --problem");
  expect_one_sentence(fulmen(and_numbers({"--model"})), "--model beside --problem");
  expect_one_sentence(fulmen(and_numbers({"--gradients", "dq"})),
                      "--gradients: it is of the backward pass");
  expect_one_sentence(fulmen(and_numbers({"--kv-heads", "3"})), "3");
  expect_one_sentence(fulmen(and_numbers({"--window", "3"})), "--window 3: two numbers L,R");
  expect_one_sentence(fulmen(and_numbers({"--keep", "k.npy"})),
                      "--keep: it goes with a problem given by files");
  expect_one_sentence(fulmen(and_numbers({"--kernel", "cpu.short"})), "--kernel cpu.short");
  expect_one_sentence(fulmen(and_numbers({"--batch", "1000000", "--max-gb", "0.1"})),
                      "more than --max-gb 0.1");
  expect_one_sentence(fulmen(and_numbers({"--batch", "9000000000000000000"})),
                      "q.shape is [9000000000000000000");
  expect_one_sentence(
      fulmen(with({"--problem", "--q", "missing.npy", "--k", "k.npy", "--v", "v.npy"})),
      "missing.npy");
  write_bytes("q.npy", "x");
  expect_one_sentence(fulmen(with({"--problem", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy",
                                   "--json", "q.npy"})),
                      "--json q.npy: --q reads it");
}

TEST(BenchMasks, AreInEverySuiteOfDevicesThatAreTimed) {
  for (const tools::CaseSize size : {tools::CaseSize::cpu, tools::CaseSize::gpu}) {
    for (const char* suite : {"prefill", "boards", "decode", "training"}) {
      std::set<std::string> names;
      int masked = 0;
      for (const tools::BenchCase& c : tools::bench_cases(suite, DType::bf16, size, false)) {
        EXPECT_TRUE(names.insert(c.name).second) << c.name << " is twice in " << suite;
        masked += c.mask != tools::CaseMask::none ? 1 : 0;
        EXPECT_FALSE(c.causal && c.mask != tools::CaseMask::none) << c.name;
      }
      EXPECT_GE(masked, 1) << suite;
    }
  }
}

TEST(BenchMasks, SayWhatTheirNamesSay) {
  tools::NormalPool pool(1);
  tools::BenchCase c;
  c.suite = "prefill";
  c.batch = 5;
  c.seqlen_q = 6;
  c.seqlen_k = 9;
  c.head_dim = 8;
  c.mask = tools::CaseMask::triangle;
  const auto triangle = tools::make_case_data(c, pool, {}, 1 << 20);
  ASSERT_TRUE(triangle.ok()) << triangle.status().message();
  const auto* keep = static_cast<const uint8_t*>(triangle.value()->tensors.keep_mask.data);
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 9; ++j) EXPECT_EQ(keep[i * 9 + j], j - i <= 3 ? 1 : 0) << i << ' ' << j;
  }
  c.mask = tools::CaseMask::padding;
  const auto padding = tools::make_case_data(c, pool, {}, 1 << 20);
  ASSERT_TRUE(padding.ok()) << padding.status().message();
  EXPECT_EQ(padding.value()->tensors.keep_mask.shape, (std::array<int64_t, 4>{5, 1, 1, 9}));
  keep = static_cast<const uint8_t*>(padding.value()->tensors.keep_mask.data);
  const int64_t kept[] = {8, 7, 6, 5, 8};  // 9 - 9/8, 9 - 18/8, ...
  for (int b = 0; b < 5; ++b)
    EXPECT_EQ(std::count(keep + b * 9, keep + b * 9 + kept[b], 1),
              std::count(keep + b * 9, keep + b * 9 + 9, 1));
  for (int b = 0; b < 5; ++b) EXPECT_EQ(std::count(keep + b * 9, keep + b * 9 + 9, 1), kept[b]);
}

}  // namespace
}  // namespace fulmen::test
