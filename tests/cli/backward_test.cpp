// `fulmen run --backward` against the oracle, and what explain and verify say of the backward pass.
#include <cmath>
#include <cstring>

#include "fulmen/fulmen.h"
#include "program.h"
#include "runtime/float_formats.h"
#include "support/deferred_device.h"
#include "tools/commands.h"

namespace fulmen::test {
namespace {

using tools::NpyArray;
using tools::read_npy;

constexpr const char* kReference = "cpu.reference.backward";

class BackwardTest : public ProgramTest {
 protected:
  NpyArray load(const std::string& path) const {
    Result<NpyArray> array = read_npy(path, false);
    EXPECT_TRUE(array.ok()) << array.status().message();
    return array.ok() ? std::move(array).value() : NpyArray{};
  }
  void expect_close(const std::string& name, const std::vector<int64_t>& shape,
                    const std::vector<double>& expected) const {
    const NpyArray array = load(path(name));
    ASSERT_EQ(array.shape, shape) << name;
    ASSERT_EQ(array.element_count(), expected.size()) << name;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(static_cast<const float*>(array.data.data())[i], expected[i],
                  1e-4 * std::fmax(1, std::fabs(expected[i])))
          << name << ' ' << i;
    }
  }
  Outcome run(std::vector<std::string> arguments, const std::vector<std::string>& more) const {
    arguments.insert(arguments.begin(), {"run", "--backward", "--kernel", kReference});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return fulmen(arguments);
  }
};

Tensor view_of(const NpyArray& a) {
  return Tensor::bshd(a.data.data(), DType::fp32, a.shape[0], a.shape[1], a.shape[2], a.shape[3]);
}

// The example's gradients by the oracle, with its own output as the output's gradient.
TEST_F(BackwardTest, RealInputGivesTheExactGradients) {
  const NpyArray q = load(example("q.npy")), k = load(example("k.npy")), v = load(example("v.npy")),
                 keep = load(example("keep.npy"));
  const NpyArray out = load(example("out.npy")), lse = load(example("lse.npy"));
  AttentionTensors t;
  t.q = t.dq = view_of(q);
  t.k = t.dk = view_of(k);
  t.v = t.dv = view_of(v);
  t.out = t.dout = view_of(out);
  t.keep_mask = Tensor::bhqk(keep.data.data(), DType::boolean, keep.shape[0], 1, 1, keep.shape[1]);
  t.lse = Tensor::bhqk(lse.data.data(), DType::fp32, lse.shape[0], lse.shape[1], lse.shape[2], 1);
  std::vector<double> dq(q.element_count()), dk(k.element_count()), dv(v.element_count());
  const Problem problem = make_backward_problem(t, {}).value();
  ASSERT_TRUE(
      attention_backward_reference(problem, t, {dq.data(), dk.data(), dv.data(), nullptr, nullptr})
          .ok());

  const std::vector<std::string> gradients{"--dout", example("out.npy"), "--dq", "dq.npy",
                                           "--dk",   "dk.npy",           "--dv", "dv.npy"};
  const Outcome first = run(example_inputs(), gradients);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(std::count(first.out.begin(), first.out.end(), '\n'), 3) << first.out;
  EXPECT_NE(first.out.find(std::string("dk.npy [2, 44, 6, 32] by ") + kReference),
            std::string::npos)
      << first.out;
  EXPECT_EQ(files(), (std::vector<std::string>{"dk.npy", "dq.npy", "dv.npy"}));
  expect_close("dq.npy", q.shape, dq);
  expect_close("dk.npy", k.shape, dk);
  expect_close("dv.npy", v.shape, dv);

  // The forward pass's results are written to files and read back: the gradients must be the same.
  std::vector<std::string> more = gradients;
  more.insert(more.end(), {"--out", "out.npy", "--lse", "lse.npy", "--verify"});
  const Outcome both = run(example_inputs(), more);
  ASSERT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out.rfind("out.npy [2, 44, 6, 32] by cpu.", 0), 0U) << both.out;
  for (const char* name : {"dq.npy", "dk.npy", "dv.npy"}) std::filesystem::remove(path(name));
  more = gradients;
  more.insert(more.end(), {"--forward-out", "out.npy", "--forward-lse", "lse.npy"});
  const Outcome read = run(example_inputs(), more);
  ASSERT_EQ(read.exit_code, 0) << read.err;
  EXPECT_EQ(read.out, first.out);
  expect_close("dv.npy", v.shape, dv);
}

// Bias, sinks, dlse, dropout and a layout of its own: two query heads on one KV head, bias the same
// for all batches.
TEST_F(BackwardTest, EveryOptionReachesTheComputation) {
  constexpr int64_t kB = 2, kQ = 5, kK = 7, kH = 2, kD = 4;
  const auto numbers = [](int64_t count, int salt) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(salt)) % 19) / 9 - 1;
    return values;
  };
  std::vector<float> q = numbers(kB * kQ * kH * kD, 1), k = numbers(kB * kK * kD, 2),
                     v = numbers(kB * kK * kD, 3);
  std::vector<float> bias = numbers(kH * kQ * kK, 4), sinks = numbers(kH, 5),
                     dout = numbers(kB * kQ * kH * kD, 6);
  std::vector<float> dlse = numbers(kB * kH * kQ, 7);
  write_array("q.npy", DType::fp32, {kB, kH, kQ, kD}, q.data());
  write_array("k.npy", DType::fp32, {kB, 1, kK, kD}, k.data());
  write_array("v.npy", DType::fp32, {kB, 1, kK, kD}, v.data());
  write_array("bias.npy", DType::fp32, {kH, kQ, kK}, bias.data());
  write_array("sinks.npy", DType::fp32, {kH}, sinks.data());
  write_array("dout.npy", DType::fp32, {kB, kH, kQ, kD}, dout.data());
  write_array("dlse.npy", DType::fp32, {kB, kH, kQ}, dlse.data());
  AttentionTensors t;
  t.q = t.dq = t.out = Tensor::bhsd(q.data(), DType::fp32, kB, kQ, kH, kD);
  t.dout = Tensor::bhsd(dout.data(), DType::fp32, kB, kQ, kH, kD);
  t.k = t.dk = Tensor::bhsd(k.data(), DType::fp32, kB, kK, 1, kD);
  t.v = t.dv = Tensor::bhsd(v.data(), DType::fp32, kB, kK, 1, kD);
  t.bias = t.dbias = Tensor::bhqk(bias.data(), DType::fp32, 1, kH, kQ, kK);
  t.sinks = t.dsinks = {sinks.data(), DType::fp32, {1, 1, 1, kH}, {0, 0, 0, 1}};
  t.lse = t.dlse = Tensor::bhqk(dlse.data(), DType::fp32, kB, kH, kQ, 1);
  t.dropout_seed = 18446744073709551615U;
  t.dropout_offset = 5;
  AttentionOptions options;
  options.dropout = 0.3F;
  options.softcap = 2;
  options.causal = Causal::bottom_right;
  std::vector<double> dq(q.size()), dk(k.size()), dv(v.size()), dbias(bias.size()),
      dsinks(sinks.size());
  const Problem problem = make_backward_problem(t, options).value();
  ASSERT_TRUE(attention_backward_reference(
                  problem, t, {dq.data(), dk.data(), dv.data(), dbias.data(), dsinks.data()})
                  .ok());

  const std::vector<std::string> inputs{
      "--layout", "bhsd",     "--q",     "q.npy",     "--k",      "k.npy",     "--v", "v.npy",
      "--bias",   "bias.npy", "--sinks", "sinks.npy", "--causal", "--softcap", "2"};
  const std::vector<std::string> gradients{
      "--dout",           "dout.npy", "--dlse",          "dlse.npy",
      "--dropout",        "0.3",      "--dropout-seed",  "18446744073709551615",
      "--dropout-offset", "5",        "--deterministic", "--dq",
      "dq.npy",           "--dk",     "dk.npy",          "--dv",
      "dv.npy",           "--dbias",  "dbias.npy",       "--dsinks",
      "dsinks.npy"};
  const Outcome outcome = run(inputs, gradients);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  // From the oracle's [batch, seqlen, head, dim] to the files' order.
  std::vector<double> heads_first(dq.size());
  for (int64_t at = 0; at < kB * kQ * kH * kD; ++at) {
    const int64_t b = at / (kQ * kH * kD), i = at / (kH * kD) % kQ, h = at / kD % kH;
    heads_first[static_cast<std::size_t>(((b * kH + h) * kQ + i) * kD + at % kD)] =
        dq[static_cast<std::size_t>(at)];
  }
  expect_close("dq.npy", {kB, kH, kQ, kD}, heads_first);
  expect_close("dk.npy", {kB, 1, kK, kD}, dk);
  expect_close("dv.npy", {kB, 1, kK, kD}, dv);
  expect_close("dbias.npy", {kH, kQ, kK}, dbias);
  expect_close("dsinks.npy", {kH}, dsinks);
}

TEST_F(BackwardTest, ForwardDropoutIsTheSeeds) {
  const auto run_forward = [&](const char* seed, const char* out) {
    std::vector<std::string> arguments{"run", "--dropout", "0.5", "--dropout-seed",
                                       seed,  "--out",     out};
    for (const std::string& argument : example_inputs()) arguments.push_back(argument);
    const Outcome outcome = fulmen(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_text(path(out));
  };
  const std::string first = run_forward("1", "a.npy");
  EXPECT_EQ(run_forward("1", "b.npy"), first);
  EXPECT_NE(run_forward("2", "c.npy"), first);
}

TEST_F(BackwardTest, BfloatGradientsAreUint16) {
  const Outcome outcome = run(example_inputs(), {"--dtype", "bf16", "--dout", example("out.npy"),
                                                 "--dv", "dv.npy", "--verify"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(read_text(path("dv.npy")).find("'<u2'"), std::string::npos);
}

TEST_F(BackwardTest, ExplainSaysTheSameByNumbersAndByFiles) {
  std::vector<std::string> by_files{"explain", "--backward", "--kernel", kReference,
                                    "--no-deterministic"};
  for (const std::string& argument : example_inputs()) by_files.push_back(argument);
  const Outcome files = fulmen(by_files);
  const Outcome numbers =
      fulmen({"explain", "--backward", "--no-deterministic", "--kernel", kReference, "--batch", "2",
              "--seqlen-q", "44", "--heads", "6", "--head-dim", "32", "--keep-shape", "2,1,1,44",
              "--gradients", "dq,dk,dv"});
  ASSERT_EQ(files.exit_code, 0) << files.err;
  EXPECT_EQ(files.out, numbers.out) << numbers.err;
  EXPECT_NE(files.out.find(" nondeterministic gives dq dk dv\n"), std::string::npos) << files.out;
  EXPECT_NE(files.out.find("not cpu.reference.double: it computes the forward pass"),
            std::string::npos)
      << files.out;
  const Outcome summed =
      fulmen({"explain", "--backward", "--kernel", kReference, "--batch", "8", "--seqlen-q", "64",
              "--heads", "4", "--head-dim", "32", "--bias-shape", "8,4,64,64", "--dbias-shape",
              "1,4,64,64", "--with-sinks", "--with-dlse"});
  ASSERT_EQ(summed.exit_code, 0) << summed.err;
  EXPECT_NE(summed.out.find("sinks dlse gives dq dk dv dsinks dbias=fp32 strides=[0, 4096, 64, 1]"),
            std::string::npos)
      << summed.out;
  const std::vector<std::string> problem{"explain",    "--backward", "--seqlen-q",    "64",
                                         "--head-dim", "32",         "--dbias-shape", "1,1,64,64"};
  const auto refused = [&](std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), problem.begin(), problem.end());
    expect_one_sentence(fulmen(more), part);
  };
  refused({}, "--dbias-shape: it goes with a bias");
  refused({"--bias-shape", "1,1,64,64", "--gradients", "dq"},
          "--dbias-shape: --gradients leaves dbias out");
}

// In this process, where a test can have a backend of its own.
Status verify(const std::vector<std::string>& arguments, std::string& out) {
  CLI::App app;
  const tools::Command command = tools::verify_command(app);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  reversed.emplace_back("verify");
  app.parse(reversed);
  ::testing::internal::CaptureStdout();
  const Status status = command.run();
  out = ::testing::internal::GetCapturedStdout();
  return status;
}

TEST_F(BackwardTest, VerifyTabulatesEveryGradientOfADevicesKernel) {
  testing::register_deferred_device();
  std::string out;
  // Random problems, since a grid's take a hundred times as long. These have every gradient.
  const Status status = verify(
      {"--backward", "--device", "deferred:0", "--dtype", "fp32", "--random", "8", "--seed", "7"},
      out);
  ASSERT_TRUE(status.ok()) << status.message() << out;
  for (const char* gradient : {"dq", "dk", "dv", "dbias", "dsinks"}) {
    EXPECT_NE(out.find(std::string("fp32  ") + gradient), std::string::npos) << gradient << " in\n"
                                                                             << out;
  }
  EXPECT_NE(out.find("deferred.backward"), std::string::npos) << out;
  EXPECT_EQ(out.find("deferred.prefill"), std::string::npos) << out;
  EXPECT_EQ(testing::deferred_allocations(), 0);
}

// A kernel that is wrong in one element of dk. Few problems suffice: the test is about failures.
class OffByABitBackend final : public Backend, public Kernel {
 public:
  std::string_view name() const noexcept override { return "off"; }
  std::vector<DeviceInfo> devices() const override { return {{"off", "a test", "", true, ""}}; }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }
  Pass pass() const noexcept override { return Pass::backward; }
  bool dropout() const noexcept override { return true; }
  Support supports(const Problem& p, const std::string& /*device*/) const override {
    return p.seqlen_k > 0 ? Support{} : Support::no("keys alone");
  }
  double rank(const Problem& /*problem*/) const override { return 1; }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    AttentionOptions exact = options;
    exact.kernel = kReference;
    return std::unique_ptr<Runner>(
        std::make_unique<OffByABit>(plan(problem, "cpu", exact).value()));
  }

 private:
  class OffByABit final : public Runner {
   public:
    explicit OffByABit(Plan exact) : exact_(std::move(exact)) {}
    const KernelConfig& config() const noexcept override { return exact_.config(); }
    std::size_t workspace_bytes() const noexcept override { return 0; }
    Status run(void* stream, const AttentionTensors& tensors, void* /*workspace*/) const override {
      const Status status = exact_.run(stream, tensors, nullptr, 0);
      const DType dtype = exact_.problem().dk.dtype;
      reference::store_float(tensors.dk.data, dtype, 0,
                             reference::load_float(tensors.dk.data, dtype, 0) + 1.0F);
      return status;
    }

   private:
    Plan exact_;
  };
  std::vector<const Kernel*> kernels_{this};
};

TEST_F(BackwardTest, VerifyNamesTheGradientThatIsWrong) {
  static const Status registered = register_backend(std::make_shared<OffByABitBackend>());
  ASSERT_TRUE(registered.ok());
  std::string out;
  const Status status = verify(
      {"--backward", "--device", "off", "--dtype", "fp32", "--random", "3", "--seed", "7"}, out);
  EXPECT_EQ(status.code(), StatusCode::verification_failed) << status.message() << out;
  EXPECT_NE(status.message().find("--seed 7"), std::string::npos) << status.message();
  EXPECT_NE(out.find("FAILED off fp32"), std::string::npos) << out;
  EXPECT_NE(out.find("dk[b, j, h, d] = [0, 0, 0, 0]"), std::string::npos) << out;
  const Status none = verify({"--backward", "--device", "off", "--dtype", "fp16", "--kernel", "off",
                              "--random", "1", "--seed", "7"},
                             out);
  EXPECT_EQ(none.code(), StatusCode::verification_failed);
}

}  // namespace
}  // namespace fulmen::test
