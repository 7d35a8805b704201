// Times the attention part of lc0's EncoderBlock<half>::Eval alone: its batched GEMMs and softmax, its fusedMHA, and Fulmen, in
// turn. To be linked with the objects of an lc0 that was built with CUDA and Fulmen (bench_cuda.py --help). T82's geometry; each
// call is checked against double precision first. Under lc0's licence, GPL 3 or later, since it repeats Eval's calls.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "neural/backends/cuda/cuda_common.h"
#include "neural/backends/cuda/kernels.h"
#include "neural/backends/shared/fulmen_attention.h"

namespace lczero {
namespace {
using namespace cudnn_backend;

constexpr int kHeads = 24, kDepth = 32, kModel = kHeads * kDepth, kSquares = 64;
constexpr int kMaxBatch = 1024;  // lc0's default
constexpr int kLayers = 15;      // attention parts of an evaluation, which is one graph
constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.03;
constexpr size_t kPlane = size_t(kSquares) * kModel;              // of q, k, v or out, a board
constexpr size_t kScores = size_t(kHeads) * kSquares * kSquares;  // of the bias, a board

half* Allocate(size_t count) {
  void* memory = nullptr;
  ReportCUDAErrors(cudaMalloc(&memory, count * sizeof(half)));
  return static_cast<half*>(memory);
}

// As network_cuda.cc and layers.cc lay them out: q, k and v max_batch boards apart, two buffers for scores, bias and output.
struct Memory {
  half* qkv = Allocate(3 * kMaxBatch * kPlane);
  half* buffer1 = Allocate(kMaxBatch * kScores);
  half* buffer2 = Allocate(kMaxBatch * kScores);
  half* q() const { return qkv; }
  half* k() const { return qkv + kMaxBatch * kPlane; }
  half* v() const { return qkv + 2 * kMaxBatch * kPlane; }
};

class Attention {
 public:
  Attention() {
    ReportCUDAErrors(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ReportCUBLASErrors(cublasCreate(&cublas_));
    ReportCUBLASErrors(cublasSetStream(cublas_, stream_));
    ReportCUBLASErrors(cublasSetMathMode(cublas_, CUBLAS_TENSOR_OP_MATH));
    ReportCUDAErrors(cudaMalloc(reinterpret_cast<void**>(&offsets_), sizeof(half*) * kHeads * kMaxBatch * 5));
    genOffsetPointers(offsets_, kHeads, kMaxBatch, kDepth, kModel, memory_.k(), memory_.q(), memory_.buffer1, memory_.v(),
                      memory_.buffer2, stream_);
    fulmen_ = FulmenAttention::Create(OptionsDict(), true, "cuda:0", FULMEN_FP16, kMaxBatch, {kHeads, kDepth, true}, 0);
    if (!fulmen_) throw Exception("no kernel of Fulmen serves");
    FillInputs();
  }

  // The three ways; the result is in buffer2, in buffer1 for Fulmen's.
  void Unfused(int batch) const {
    const half scale = 1.0f / std::sqrt(float(kDepth)), one = 1.0f, zero = 0.0f;
    half** const at = offsets_;
    const int step = kHeads * kMaxBatch;
    ReportCUBLASErrors(cublasHgemmBatched(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, kSquares, kSquares, kDepth, &scale, at, kModel,
                                          at + step, kModel, &zero, at + 2 * step, kSquares, batch * kHeads));
    Softmax(kHeads * batch * kSquares, kSquares, memory_.buffer1, memory_.buffer1, static_cast<const half*>(memory_.buffer2),
            stream_);
    ReportCUBLASErrors(cublasHgemmBatched(cublas_, CUBLAS_OP_N, CUBLAS_OP_N, kDepth, kSquares, kSquares, &one, at + 3 * step,
                                          kModel, at + 2 * step, kSquares, &zero, at + 4 * step, kModel, batch * kHeads));
  }
  void FusedMha(int batch) const {
    fusedMHA(memory_.buffer2, memory_.q(), memory_.k(), memory_.v(), memory_.buffer2, batch, kHeads, kDepth, stream_);
  }
  void Fulmen(int batch) const {
    fulmen_->Run(batch, memory_.q(), memory_.k(), memory_.v(), memory_.buffer2, memory_.buffer1, stream_, nullptr);
  }

  // The largest difference from double precision, over the last board.
  double Error(int batch, const std::function<void(int)>& way, bool result_is_in_buffer1) const {
    ReportCUDAErrors(cudaMemcpy(memory_.buffer2, bias_.data(), batch * kScores * sizeof(half), cudaMemcpyHostToDevice));
    way(batch);
    ReportCUDAErrors(cudaStreamSynchronize(stream_));
    std::vector<half> out(kPlane);
    const half* result = (result_is_in_buffer1 ? memory_.buffer1 : memory_.buffer2) + (batch - 1) * kPlane;
    ReportCUDAErrors(cudaMemcpy(out.data(), result, kPlane * sizeof(half), cudaMemcpyDeviceToHost));
    const std::vector<double> reference = Reference(batch - 1);
    double worst = 0;
    for (size_t i = 0; i < kPlane; ++i) {
      const double error = std::abs(double(__half2float(out[i])) - reference[i]);
      if (!(error <= worst)) worst = error;  // a NaN stays
    }
    return worst;
  }

  // Microseconds of one attention part in a graph of as many as an evaluation has.
  double Time(int batch, const std::function<void(int)>& way) const {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    way(batch);  // what is only there after a first call
    ReportCUDAErrors(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kLayers; ++i) way(batch);
    ReportCUDAErrors(cudaStreamEndCapture(stream_, &graph));
    ReportCUDAErrors(cudaGraphInstantiate(&exec, graph, nullptr, nullptr, 0));
    const double once = Launches(exec, 3);
    const int count = std::clamp(int(kRoundSeconds * 1e6 / (once * kLayers)), 3, 1000);
    const double time = Launches(exec, count);
    ReportCUDAErrors(cudaGraphExecDestroy(exec));
    ReportCUDAErrors(cudaGraphDestroy(graph));
    return time;
  }

 private:
  double Launches(cudaGraphExec_t exec, int count) const {
    cudaEvent_t begin, end;
    float milliseconds = 0;
    ReportCUDAErrors(cudaEventCreate(&begin));
    ReportCUDAErrors(cudaEventCreate(&end));
    ReportCUDAErrors(cudaEventRecord(begin, stream_));
    for (int i = 0; i < count; ++i) ReportCUDAErrors(cudaGraphLaunch(exec, stream_));
    ReportCUDAErrors(cudaEventRecord(end, stream_));
    ReportCUDAErrors(cudaEventSynchronize(end));
    ReportCUDAErrors(cudaEventElapsedTime(&milliseconds, begin, end));
    ReportCUDAErrors(cudaEventDestroy(begin));
    ReportCUDAErrors(cudaEventDestroy(end));
    return 1e3 * milliseconds / (count * kLayers);
  }

  void FillInputs() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(1 << 20);
    for (float& x : numbers) x = normal(random);
    // Boards differ, since the period is no multiple of a board.
    const auto fill = [&](std::vector<half>& to, size_t count, size_t period) {
      to.resize(count);
      for (size_t i = 0; i < count; ++i) to[i] = numbers[i % period];
    };
    fill(qkv_, 3 * kMaxBatch * kPlane, 1000003);
    fill(bias_, kMaxBatch * kScores, 999983);
    ReportCUDAErrors(cudaMemcpy(memory_.qkv, qkv_.data(), qkv_.size() * sizeof(half), cudaMemcpyHostToDevice));
    ReportCUDAErrors(cudaMemcpy(memory_.buffer2, bias_.data(), bias_.size() * sizeof(half), cudaMemcpyHostToDevice));
  }

  std::vector<double> Reference(int board) const {
    std::vector<double> out(kPlane);
    const half* q = qkv_.data() + board * kPlane;
    const half *k = q + kMaxBatch * kPlane, *v = k + kMaxBatch * kPlane;
    const half* bias = bias_.data() + board * kScores;
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kSquares; ++i) {
        double p[kSquares], top = -INFINITY, sum = 0;
        for (int j = 0; j < kSquares; ++j) {
          double product = 0;
          for (int d = 0; d < kDepth; ++d)
            product += double(__half2float(q[i * kModel + h * kDepth + d])) * __half2float(k[j * kModel + h * kDepth + d]);
          p[j] = product / std::sqrt(double(kDepth)) + __half2float(bias[(h * kSquares + i) * kSquares + j]);
          top = std::max(top, p[j]);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (int d = 0; d < kDepth; ++d) {
          double total = 0;
          for (int j = 0; j < kSquares; ++j) total += p[j] * __half2float(v[j * kModel + h * kDepth + d]);
          out[i * kModel + h * kDepth + d] = total / sum;
        }
      }
    }
    return out;
  }

  Memory memory_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t cublas_ = nullptr;
  half** offsets_ = nullptr;
  std::unique_ptr<const FulmenAttention> fulmen_;
  std::vector<half> qkv_, bias_;
};

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

int Run() {
  const Attention attention;
  using Way = std::function<void(int)>;
  const Way ways[] = {[&](int n) { attention.Unfused(n); }, [&](int n) { attention.FusedMha(n); },
                      [&](int n) { attention.Fulmen(n); }};
  std::printf("batch | cuBLAS us | fusedMHA us | Fulmen us | cuBLAS / Fulmen | fusedMHA / Fulmen | errors\n");
  for (const int batch : {1, 8, 16, 32, 64, 256, 1024}) {
    double errors[3];
    for (int i = 0; i < 3; ++i) {
      errors[i] = attention.Error(batch, ways[i], i == 2);
      if (!(errors[i] < 0.02)) {  // fp16: outputs are up to 4
        std::fprintf(stderr, "batch %d, way %d: differs by %g from double precision\n", batch, i, errors[i]);
        return 1;
      }
    }
    std::vector<double> times[3];
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < 3; ++i) times[i].push_back(attention.Time(batch, ways[i]));
    }
    const double t[] = {Median(times[0]), Median(times[1]), Median(times[2])};
    std::printf("%d | %.2f | %.2f | %.2f | %.2f | %.2f | %.1e %.1e %.1e\n", batch, t[0], t[1], t[2], t[0] / t[2], t[1] / t[2],
                errors[0], errors[1], errors[2]);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace lczero

int main() {
  try {
    return lczero::Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
