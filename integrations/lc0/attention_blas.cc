// Times the attention part of lc0's ForwardEncoderLayer alone: its GEMMs of each head and its softmax, and Fulmen, in turn, on one
// thread by CPU time. To be linked with the objects of an lc0 that was built with OpenBLAS and Fulmen (run.sh). T82's geometry; the
// two must agree. Under lc0's licence, GPL 3 or later, since it repeats that function's calls.
#include <cblas.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "neural/backends/shared/activation.h"
#include "neural/backends/shared/fulmen_attention.h"

namespace lczero {
namespace {

constexpr int kHeads = 24, kDepth = 32, kModel = kHeads * kDepth, kSquares = 64;
constexpr size_t kPlane = size_t(kSquares) * kModel, kScores = size_t(kHeads) * kSquares * kSquares;

struct Clock {
  double cpu, wall;
  static double Read(clockid_t id) {
    timespec t;
    clock_gettime(id, &t);
    return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec;
  }
  static Clock Now() { return {Read(CLOCK_PROCESS_CPUTIME_ID), Read(CLOCK_MONOTONIC)}; }
};

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

class Attention {
 public:
  explicit Attention(int batch)
      : batch_(batch), q_(batch * kPlane), k_(q_), v_(q_), out_(q_), bias_(batch * kScores), scores_(bias_) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* x : {&q_, &k_, &v_, &bias_}) {
      for (float& value : *x) value = normal(random);
    }
    fulmen_ = FulmenAttention::Create(OptionsDict(), true, "cpu", FULMEN_FP32, batch, {kHeads, kDepth, true}, 1);
    if (!fulmen_) throw Exception("no kernel of Fulmen serves");
    workspace_.resize(fulmen_->WorkspaceBytes() + 64);
  }

  void Unfused() {
    for (int b = 0; b < batch_; ++b) {
      for (int h = 0; h < kHeads; ++h) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kSquares, kSquares, kDepth, 1.0f / sqrtf(kDepth),
                    &q_[b * kPlane + h * kDepth], kModel, &k_[b * kPlane + h * kDepth], kModel, 1.0f, Scores(b, h), kSquares);
      }
    }
    for (size_t row = 0; row < batch_ * kScores; row += kSquares) SoftmaxActivation(kSquares, &scores_[row], &scores_[row]);
    for (int b = 0; b < batch_; ++b) {
      for (int h = 0; h < kHeads; ++h) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSquares, kDepth, kSquares, 1.0f, Scores(b, h), kSquares,
                    &v_[b * kPlane + h * kDepth], kModel, 0.0f, &out_[b * kPlane + h * kDepth], kModel);
      }
    }
  }
  void Fulmen() {
    size_t bytes = workspace_.size();
    void* workspace = workspace_.data();
    std::align(64, fulmen_->WorkspaceBytes(), workspace, bytes);
    fulmen_->Run(batch_, q_.data(), k_.data(), v_.data(), scores_.data(), out_.data(), nullptr, workspace);
  }

  // Milliseconds of a call. The bias is written before, as lc0's smolgen does, and not timed.
  template <class Way>
  Clock Time(const Way& way) {
    std::memcpy(scores_.data(), bias_.data(), bias_.size() * sizeof(float));
    const Clock begin = Clock::Now();
    way();
    const Clock end = Clock::Now();
    return {end.cpu - begin.cpu, end.wall - begin.wall};
  }
  const std::vector<float>& out() const { return out_; }

 private:
  float* Scores(int board, int head) { return &scores_[board * kScores + size_t(head) * kSquares * kSquares]; }

  const int batch_;
  std::vector<float> q_, k_, v_, out_, bias_, scores_;
  std::vector<char> workspace_;
  std::unique_ptr<const FulmenAttention> fulmen_;
};

void Bench(int batch, int boards) {
  Attention attention(batch);
  const auto unfused = [&] { attention.Unfused(); };
  const auto fused = [&] { attention.Fulmen(); };
  attention.Time(unfused);
  const std::vector<float> plain = attention.out();
  attention.Time(fused);
  double worst = 0;
  for (size_t i = 0; i < plain.size(); ++i) worst = std::max(worst, std::abs(double(plain[i]) - attention.out()[i]));
  if (!(worst < 1e-5)) throw Exception("batch " + std::to_string(batch) + ": results differ by " + std::to_string(worst));
  std::vector<double> unfused_cpu, fused_cpu, ratio, wall_ratio;
  for (int round = 0; round < std::max(5, boards / batch); ++round) {
    const Clock u = attention.Time(unfused), f = attention.Time(fused);
    unfused_cpu.push_back(u.cpu);
    fused_cpu.push_back(f.cpu);
    ratio.push_back(u.cpu / f.cpu);
    wall_ratio.push_back(u.wall / f.wall);
  }
  std::printf("%d | %.3f | %.3f | %.2f | %.2f\n", batch, Median(unfused_cpu), Median(fused_cpu), Median(ratio), Median(wall_ratio));
  std::fflush(stdout);
}

}  // namespace
}  // namespace lczero

// attention_blas SIZE...
int main(int argc, char** argv) {
  try {
    openblas_set_num_threads(1);
    std::printf("batch | unfused CPU ms | fused CPU ms | CPU ratio | wall ratio\n");
    for (int i = 1; i < argc; ++i) lczero::Bench(std::atoi(argv[i]), 2048);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
