// The operation: out = softmax(score) v with score = softcap(scale * q k^T) + bias + ALiBi, masked.
// docs/contract.md has the formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "fulmen/export.h"
#include "fulmen/score_functions.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

enum class Causal : int {
  none = 0,
  bottom_right = 1,  // query i attends keys j <= i + seqlen_k - seqlen_q
  top_left = 2,      // query i attends keys j <= i
};

// In which numbers the products are: docs/contract.md, "Products in 8 bits". A caller who says
// nothing has exact ones.
enum class Precision : int {
  exact = 0,  // those of the tensors
  int8 = 1,   // q k^T in int8; the probabilities and v as with exact
  fp8 = 2,    // both products in fp8_e4m3
};

FULMEN_API const char* to_string(Precision precision) noexcept;  // "exact", "int8", "fp8"

// The tensors of one call. An absent tensor has data == nullptr in run() and an all-zero shape in a
// Problem. An InputTensor takes a Tensor or a ConstTensor; out and lse are the forward pass's
// outputs and so Tensors, which the backward pass reads alone.
struct AttentionTensors {
  InputTensor q{};             // [batch, seqlen_q, num_heads, head_dim], fp32, fp16 or bf16
  InputTensor k{};             // [batch, seqlen_k, num_kv_heads, head_dim], dtype of q, or
                               // int8, fp8 or a block format; num_heads % num_kv_heads == 0
  InputTensor v{};             // [batch, seqlen_k, num_kv_heads, head_dim_v], the same
  Tensor out{};                // [batch, seqlen_q, num_heads, head_dim_v], dtype of q; may be
                               // exactly q's memory, else must not overlap any input
  InputTensor bias{};          // optional [batch, num_heads, seqlen_q, seqlen_k], any float dtype;
                               // dims of size or stride 0/1 broadcast; -inf masks, any finite
                               // number is added
  InputTensor keep_mask{};     // optional boolean [batch, num_heads, seqlen_q, seqlen_k],
                               // true = attend; broadcasts like bias
  InputTensor alibi_slopes{};  // optional fp32 [1 or batch, 1, 1, num_heads]: adds
                               // -slope * |i + offset - j|
  InputTensor sinks{};         // optional fp32 [1, 1, 1, num_heads]: one more logit a head in the
                               // softmax's denominator
  Tensor lse{};                // optional fp32 output [batch, num_heads, seqlen_q, 1]: natural log
                               // of the softmax's denominator

  // Backward alone: there out and lse are inputs, as the forward call gave them, and lse is needed.
  // A gradient that is absent is not computed; one at least is needed.
  InputTensor dout{};  // [batch, seqlen_q, num_heads, head_dim_v], dtype of q: the loss's gradient
                       // by out
  InputTensor dlse{};  // optional fp32 [batch, num_heads, seqlen_q, 1]: the loss's gradient by lse
  Tensor dq{};         // output of q's shape and dtype
  Tensor dk{};         // output of k's shape and dtype: the sum over the query heads that share a
                       // KV head
  Tensor dv{};         // output of v's shape and dtype, the same
  Tensor dbias{};      // output [batch, num_heads, seqlen_q, seqlen_k], any float dtype; over dims
                       // of size 1 (all but the last may be) it is the sum; fp32 accumulation
  Tensor dsinks{};     // fp32 output [1, 1, 1, num_heads]

  // Which random numbers dropout takes: the same pair gives the same mask, forward and backward, on
  // every device (dropout_mask).
  uint64_t dropout_seed = 0;
  uint64_t dropout_offset = 0;

  // Sequences of different lengths, and keys and values in pages: all optional, all int32. Their
  // values are memory of the device like any tensor's: planning never reads them. docs/contract.md,
  // "Sequences of different lengths", has the rules.
  InputTensor cu_seqlens_q{};  // [1, 1, 1, batch + 1]: q, out, dout, dq are packed,
                               // [1, total_q, ...], and lse, dlse [1, num_heads, total_q, 1];
                               // sequence b is rows cu[b] to cu[b + 1] - 1
  InputTensor cu_seqlens_k{};  // [1, 1, 1, batch + 1]: the same of k, v, dk, dv; with a block_table
                               // its differences are the lengths
  InputTensor seqlens_k{};     // [1, 1, 1, batch]: of padded or paged k and v, rows 0 to
                               // seqlens_k[b] - 1 are used
  InputTensor block_table{};   // [1, 1, batch, max_pages]: k, v are
                               // [num_pages, page_size, num_kv_heads, dim]; row r of sequence b is
                               // row r % page_size of page block_table[b][r / page_size]
  InputTensor leftpad_k{};     // [1, 1, 1, batch]: the first used row of padded or paged k and v is
                               // leftpad_k[b]: key 0 of the masks

  // What the numbers in k and v are multiplied with, rounded to fp32: optional, fp32 or fp16. A
  // scale of each token has the dims of k and v, [batch, seqlen_k, num_kv_heads, 1], packed and in
  // pages as they are; each dim may be 1. Others are [1 or batch, 1, 1 or num_kv_heads, 1]. That of
  // k may have head_dim in the last dim: a scale of each channel. Without block formats, and in the
  // forward pass alone.
  InputTensor k_scale{};
  InputTensor v_scale{};
  InputTensor q_scale{};  // optional, fp32 or fp16 [1 or batch, 1, 1 or num_kv_heads, 1]: of the
                          // queries that share a KV head; k_scale is multiplied with it in fp32

  // A block mask: which blocks of options.mask_block_q queries and options.mask_block_k keys may be
  // attended; optional, int32. docs/guide/score_functions.md has the rules. QB and KB are the
  // numbers of blocks. Of the first two both are given or none, and so of the last two.
  InputTensor kv_num_blocks{};       // [1 or batch, 1 or num_heads, 1, QB]: listed blocks of a row
  InputTensor kv_indices{};          // [1 or batch, 1 or num_heads, QB, KB]: the first so many
  InputTensor full_kv_num_blocks{};  // the same, of blocks that mask_mod does not mask
  InputTensor full_kv_indices{};

  // What options.score_mod and options.mask_mod read, up to 32, in an order that a plan keeps.
  std::span<const FunctionTensor> function_tensors{};
};

// Runs task(arg, index) once for every index in [0, count), in any order, on any threads, and
// returns when all are done.
struct ParallelFor {
  void (*run)(void* context, int64_t count, void (*task)(void* arg, int64_t index),
              void* arg) = nullptr;
  void* context = nullptr;
};

// A field changes the result, the plan or the plan's runs. Headings name the kind of the fields
// below them. A kind has several headings, because the order of fields never changes and new ones
// come last: designated initialisers keep compiling.
struct AttentionOptions {
  // The result.
  std::optional<float> softmax_scale{};  // default 1 / sqrt(head_dim); finite, up to 1e18
  float softcap = 0.0F;                  // 0 is off; else score = softcap * tanh(score / softcap),
                                         // up to 1000
  Causal causal = Causal::none;
  int64_t window_left = -1;   // keys j >= i + offset - window_left; -1 is unlimited
  int64_t window_right = -1;  // keys j <= i + offset + window_right; -1 is unlimited
  float dropout = 0.0F;       // probability, >= 0 and < 1, that an element of the softmax is
                              // dropped; the others grow by 1 / (1 - p)
  // False also takes kernels that add gradients by atomics: faster on some GPUs, other bits every
  // run.
  bool deterministic = true;

  // The plan.
  std::string kernel{};  // force a candidate by name, e.g. "cpu.prefill.avx2"; empty chooses
  // The most CPU threads; 0: OMP_NUM_THREADS, else all processors (docs/contract.md).
  int num_threads = 0;

  // The runs.
  ParallelFor parallel_for{};  // a user's own thread pool instead of the library's
  bool verify = false;         // run the reference beside every call; also FLASH_ATTENTION_VERIFY=1
  // Checks lengths and page tables in a device's own memory before each run, by check_sequences()
  // on copies in host memory, for which the run waits. Also FLASH_ATTENTION_VALIDATE=1. Devices
  // that use the host's memory are always checked.
  bool validate = false;

  // The result.

  // The most queries and keys of any sequence; -1: as the shapes say. Needed where they do not,
  // which is for packed tensors. The shapes of bias and keep_mask go by them; plans do as far as
  // the packed tensors have rows.
  int64_t max_seqlen_q = -1;
  int64_t max_seqlen_k = -1;

  // The plan.

  // A plan for a range of sizes: the problem's batch, or its seqlen_k, is the most that run()
  // takes. What the tensors have is computed, from 0 on, as fast as by a plan of just that size.
  // plan() alone reads these.
  bool vary_batch = false;
  bool vary_seqlen_k = false;
  // The kernel's parameters by name, "block_m=64,waves=4": those that are left out fit themselves
  // to these. Plan::explain() names a kernel's, docs/guide/tuning.md explains them. Empty: as the
  // kernel chooses, or as tuned results and the environment say. Sizes of a range for which it is
  // not legal are computed as if it were empty.
  std::string tuning{};

  // The runs.

  // A plan whose runs believe the pointers: not null, aligned, memory of the device, outputs and
  // workspace apart from each other and from inputs (or out over q where the kernel allows it).
  // What that saves is most of a small call's time on a GPU, where the driver is asked about each
  // tensor. A wrong pointer is then undefined behaviour. Shapes, and values of lengths, are checked
  // still.
  bool trust_pointers = false;

  // The plan.

  // The first plan that takes a compiled kernel on a GPU runs one small problem with it beside the
  // reference: some milliseconds on NVIDIA, about a second on AMD. The verdict is kept with the
  // kernel. A kernel that fails is refused with a sentence, and the plan takes the next one; an
  // error, verification_failed, where it was forced or there is none. Plan::explain() names the
  // check. Not for calls in a stream that is being captured. FULMEN_FIRST_USE_CHECK=0 is false
  // everywhere, =1 has emulated GPUs checked.
  bool check_first_use = true;

  // The result.

  // Functions as text: of a score, and of whether a pair of query and key is attended. Empty: none.
  // docs/guide/score_functions.md has their language.
  std::string score_mod{};
  std::string mask_mod{};
  // A block mask's sizes: multiples of 16 up to 256.
  int64_t mask_block_q = 128;
  int64_t mask_block_k = 128;
  // Products in 8 bits, in the forward pass alone.
  Precision precision = Precision::exact;
};

// One call: checks, plans, allocates the workspace and runs. device is "cpu", "cuda:0", ... (see
// devices()), a backend's name alone for any device of it that works, or empty for
// default_device(). stream: a vendor's stream, in which a GPU does the work after the call has
// returned: tensors must live until then. Null is the device's default stream, and the call waits
// for the result. Ignored on the CPU. Errors: every Status that plan() and Plan::run() give. On an
// error nothing is written, with two exceptions: a result that verify found wrong, and a kernel or
// parallel_for of the user's that fails while it runs.
FULMEN_API Status attention(const AttentionTensors& tensors, const AttentionOptions& options = {},
                            const std::string& device = {}, void* stream = nullptr);

// The same for the gradients: reads q, k, v, the optional inputs, out, lse, dout and dlse, writes
// dq, dk, dv, dbias and dsinks. Errors: those of make_backward_problem(), plan() and Plan::run().
FULMEN_API Status attention_backward(const AttentionTensors& tensors,
                                     const AttentionOptions& options = {},
                                     const std::string& device = {}, void* stream = nullptr);

}  // namespace fulmen
