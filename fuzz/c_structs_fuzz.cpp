// Arguments of a C program: tensors, options and tables bent out of shape by the input's bytes.
// Planning has no pointers, so any shape may be planned. Small calls that can be planned also run,
// on memory of exactly the size that their strides reach, and are compared with the reference. No
// call may crash, access memory out of bounds, or give a wrong result.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "api/c/translation.h"
#include "fulmen/fulmen_c.h"
#include "fuzz/call_bytes.h"
#include "tools/verify/grid.h"

using namespace fulmen::fuzz;
using fulmen::kTensorFields;
using fulmen::kTensorTable;
using fulmen::c_api::kCTensors;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr std::size_t kGridSeeds = 768;  // entries of a grid: as many as fuzz/make_seeds writes
// Mostly small, so that sizes agree with each other by chance.
constexpr std::array<int64_t, 32> kNumbers{0,
                                           1,
                                           2,
                                           3,
                                           4,
                                           5,
                                           6,
                                           7,
                                           8,
                                           16,
                                           17,
                                           32,
                                           64,
                                           65,
                                           80,
                                           128,
                                           129,
                                           256,
                                           -1,
                                           -2,
                                           1000,
                                           65536,
                                           1 << 24,
                                           0x7fffffff,
                                           0x80000000,
                                           int64_t{1} << 40,
                                           (int64_t{1} << 40) + 1,
                                           int64_t{1} << 60,
                                           kMost,
                                           -kMost - 1,
                                           0,
                                           1};
constexpr std::array<float, 16> kFloats{0,
                                        1,
                                        0.5F,
                                        0.125F,
                                        2,
                                        30,
                                        1000,
                                        -1,
                                        -0.0F,
                                        1e-20F,
                                        1e18F,
                                        3e38F,
                                        1e-45F,
                                        0.999999F,
                                        std::numeric_limits<float>::quiet_NaN(),
                                        std::numeric_limits<float>::infinity()};

// A call that is right, of a shape that the bytes choose.
fulmen_tensors right_call(Bytes& in, bool backward) {
  constexpr std::array<int64_t, 8> kSizes{1, 2, 3, 5, 8, 17, 33, 0};
  const int64_t b = in.pick(kSizes), sq = in.pick(kSizes), sk = in.pick(kSizes),
                kv = 1 + in.next() % 2;
  const int64_t h = kv * (1 + in.next() % 3);
  int64_t d = 1 + in.next() % 40, dv = 1 + in.next() % 40;
  const auto dtype = static_cast<int32_t>(in.next() % 3);
  const int32_t k_dtype = backward ? dtype : stored_dtype(in.next(), dtype, d),
                v_dtype = backward ? dtype : stored_dtype(in.next(), dtype, dv);
  const auto number = [](int64_t rows, int64_t n) { return packed(FULMEN_INT32, {1, 1, rows, n}); };
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  const int features = in.next(), lengths = in.next() % 8;
  const bool packed_q = (lengths & 1) != 0, packed_k = (lengths & 2) != 0,
             paged = (lengths & 4) != 0;
  const int64_t qb = packed_q ? 1 : b, qs = packed_q ? b * sq : sq;
  const int64_t kb = paged ? 3 : packed_k ? 1 : b, ks = paged ? 4 : packed_k ? b * sk : sk;
  t.q = packed(dtype, {qb, qs, h, d});
  t.k = packed(k_dtype, {kb, ks, kv, d});
  t.v = packed(v_dtype, {kb, ks, kv, dv});
  if (k_dtype != dtype && k_dtype < FULMEN_Q8_0) t.k_scale = packed(FULMEN_FP16, {kb, ks, kv, 1});
  if (v_dtype != dtype && v_dtype < FULMEN_Q8_0) t.v_scale = packed(FULMEN_FP32, {1, 1, kv, 1});
  t.out = packed(dtype, {qb, qs, h, dv});
  if (packed_q) t.cu_seqlens_q = number(1, b + 1);
  if (packed_k) t.cu_seqlens_k = number(1, b + 1);
  if (paged) t.block_table = number(b, 1 + sk / 4);
  if ((features & 1) != 0 && !packed_k) t.seqlens_k = number(1, b);
  if ((features & 2) != 0) t.bias = packed(in.next() % 3, {1, h, sq, sk});
  if ((features & 4) != 0) t.keep_mask = packed(FULMEN_BOOLEAN, {b, 1, 1, sk});
  if ((features & 8) != 0) t.alibi_slopes = number(1, h), t.alibi_slopes.dtype = FULMEN_FP32;
  if ((features & 16) != 0) t.sinks = number(1, h), t.sinks.dtype = FULMEN_FP32;
  if ((features & 32) != 0 || backward) t.lse = packed(FULMEN_FP32, {qb, h, qs, 1});
  if (!backward) return t;
  t.dout = t.out;
  if ((features & 64) == 0) t.dq = t.q;
  t.dk = t.k;
  t.dv = t.v;
  if ((features & 128) != 0) t.dbias = t.bias;
  return t;
}

// A call of `fulmen verify`'s grid: inputs of 6 bytes, "mode, dtype, number of the entry in two, 0,
// 0", are all of them (fuzz/make_seeds). Its int32 tensors have data, the entry's own.
struct GridCall {
  fulmen::tools::GridData data;
  fulmen_tensors tensors;
  fulmen_options options;
};
GridCall grid_call(Bytes& in, bool backward) {
  using fulmen::DType, fulmen::Pass, fulmen::tools::GridCase, fulmen::tools::GridSize;
  static const auto* const kGrids = [] {
    auto* grids = new std::array<std::vector<GridCase>, 6>;
    for (std::size_t n = 0; n < 6; ++n) {
      (*grids)[n] = fulmen::tools::verify_grid(GridSize::quick, static_cast<DType>(n / 2),
                                               static_cast<Pass>(n % 2));
      if ((*grids)[n].size() > kGridSeeds)
        std::fprintf(stderr, "fuzz/make_seeds: %zu entries\n", (*grids)[n].size()), std::abort();
    }
    return grids;
  }();
  const std::vector<GridCase>& grid = (*kGrids)[in.next() % 3 * 2 + (backward ? 1 : 0)];
  const std::size_t low = in.next();
  const GridCase& entry = grid[(low + in.next() * std::size_t{256}) % grid.size()];
  auto pool = fulmen::tools::NormalPool::without_values();
  GridCall call{fulmen::tools::make_grid_data(entry, pool), {}, {}};
  fulmen_tensors_init(&call.tensors);
  for (int i = 0; i < kTensorFields; ++i) {
    fulmen_tensor& tensor = call.tensors.*kCTensors[i].tensor =
                                fulmen::c_api::to_c(call.data.tensors->*kTensorTable[i].tensor);
    if (tensor.dtype != FULMEN_INT32) tensor.data = nullptr;
  }
  const fulmen::AttentionOptions& o = call.data.options;
  fulmen_options_init(&call.options);
  call.options.softcap = o.softcap;
  call.options.causal = static_cast<int32_t>(o.causal);
  call.options.window_left = o.window_left;
  call.options.window_right = o.window_right;
  call.options.dropout = o.dropout;
  call.options.deterministic = o.deterministic;
  call.options.max_seqlen_q = o.max_seqlen_q;
  call.options.max_seqlen_k = o.max_seqlen_k;
  return call;
}

fulmen_tensor& any_tensor(Bytes& in, fulmen_tensors& t) {
  return t.*kCTensors[in.next() % kTensorFields].tensor;
}

void bend(Bytes& in, fulmen_tensors& t, fulmen_options& o) {
  fulmen_tensor& tensor = any_tensor(in, t);
  const int64_t number = in.pick(kNumbers);
  switch (const int what = in.next() % 33; what) {
    case 0:
    case 1:
    case 2:
    case 3:
      tensor.shape[what] = number;
      break;
    case 4:
    case 5:
    case 6:
    case 7:
      tensor.strides[what - 4] = number;
      break;
    case 8:
      tensor.dtype = static_cast<int32_t>(number);
      break;
    case 9:
      tensor = {};
      break;
    case 10:
      tensor = any_tensor(in, t);
      break;
    case 11:
      o.softmax_scale = in.pick(kFloats);
      break;
    case 12:
      o.softcap = in.pick(kFloats);
      break;
    case 13:
      o.dropout = in.pick(kFloats);
      break;
    case 14:
      o.causal = static_cast<int32_t>(number);
      break;
    case 15:
      o.window_left = number;
      break;
    case 16:
      o.window_right = number;
      break;
    case 17:
      o.max_seqlen_q = number;
      break;
    case 18:
      o.max_seqlen_k = number;
      break;
    case 19:
      o.num_threads = static_cast<int32_t>(number);
      break;
    case 20:
      t.struct_size = static_cast<std::size_t>(number);
      break;
    case 21:
      o.struct_size = static_cast<std::size_t>(number);
      break;
    case 22:
      o.vary_batch = !o.vary_batch;
      break;
    case 23:
      o.vary_seqlen_k = !o.vary_seqlen_k;
      break;
    case 24:
      o.trust_pointers = !o.trust_pointers;
      break;
    case 25: {
      constexpr std::array<const char*, 4> kTunings{"", "block_n=64", "num_splits=2,waves=4",
                                                    "block_m=,"};
      o.tuning = kTunings[in.next() % kTunings.size()];
      break;
    }
    case 26:
      o.check_first_use = !o.check_first_use;
      break;
    case 27: {
      constexpr std::array<const char*, 4> kScores{"score - 0.1 * abs(q - k)", "4.0 * tanh(score)",
                                                   "select(k % 3 == h, -inf, score)", "score +"};
      o.score_mod = kScores[in.next() % kScores.size()];
      break;
    }
    case 28: {
      constexpr std::array<const char*, 4> kMasks{"q >= k", "(q ^ k) % 3 != b", "k < 5 | q > 9",
                                                  "q"};
      o.mask_mod = kMasks[in.next() % kMasks.size()];
      break;
    }
    case 29:
      o.mask_block_q = number;
      break;
    case 30:
      o.mask_block_k = number;
      break;
    case 31:
      o.precision = static_cast<int32_t>(number);
      break;
    default:
      o.deterministic = !o.deterministic;
  }
}

// Small numbers that fp32, fp16 and bf16 have, and for int32 what the input says.
void fill(Bytes& in, const fulmen_tensor& t, std::size_t count) {
  constexpr std::array<uint16_t, 8> kHalf{0x0000, 0x3800, 0xb800, 0x3400,
                                          0x3c00, 0xbc00, 0x3a00, 0xb400};
  auto* bytes = static_cast<uint8_t*>(t.data);
  for (std::size_t i = 0; i < count; ++i) {
    const uint16_t half = kHalf[i * 5 % 7];
    if (t.dtype == FULMEN_INT32) {
      const auto number = static_cast<int32_t>(in.more() ? in.next() : i * 2);
      std::memcpy(bytes + 4 * i, &number, 4);
    } else if (t.dtype == FULMEN_FP32) {
      const float number = static_cast<float>(i * 5 % 7) * 0.25F - 0.75F;
      std::memcpy(bytes + 4 * i, &number, 4);
    } else if (t.dtype == FULMEN_BOOLEAN) {
      bytes[i] = i % 3 != 0 ? 1 : 0;
    } else if (size_of(t.dtype) == 1) {
      bytes[i] = static_cast<uint8_t>(in.more() ? in.next() : i * 37);
    } else {
      std::memcpy(bytes + 2 * i, &half, 2);
    }
  }
}

// Allocates memory for each tensor; returns false if that is too much. The forward pass neither
// checks nor reads the tensors of the backward pass alone: they stay as they were bent.
bool give(Bytes& in, fulmen_tensors& t, bool backward, Memory& memory) {
  for (int i = 0; i < kTensorFields; ++i) {
    if (!backward && !kTensorTable[i].read[0] && !kTensorTable[i].written[0]) continue;
    fulmen_tensor& tensor = t.*kCTensors[i].tensor;
    const std::size_t count = elements(tensor);
    if (count * size_of(tensor.dtype) > kMostBytes) return false;
    if (absent(tensor)) continue;
    const void* const given = tensor.data;  // of a grid's entry
    tensor.data = memory.take(count * size_of(tensor.dtype));
    if (count == 0) continue;
    if (given != nullptr) {
      std::memcpy(tensor.data, given, count * size_of(tensor.dtype));
    } else {
      fill(in, tensor, count);
    }
  }
  return true;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, fulmen_last_error());
  std::abort();
}

// A run with changed options, and a plan for just these options.
void run_with(Bytes& in, const fulmen_plan* plan, const fulmen_tensors& t) {
  struct {
    fulmen_run_options options;
    // struct_size below may be any byte, and so many bytes are read.
    unsigned char newer_fields[256];
  } sized{};
  fulmen_run_options& changed = sized.options;
  fulmen_run_options_init(&changed);
  if (in.next() % 2 == 0) fulmen_run_options_init_sized(&changed, sizeof changed);
  if (in.next() % 4 == 0) changed.softmax_scale = static_cast<float>(in.next()) / 64;
  if (in.next() % 4 == 0) changed.softcap = static_cast<float>(in.next()) - 1;
  if (in.next() % 4 == 0) changed.window_left = in.next() - 2;
  if (in.next() % 8 == 0) changed.window_right = INT64_MAX;
  if (in.next() % 64 == 0) changed.struct_size = static_cast<std::size_t>(in.next());
  const int code = fulmen_plan_run_with(plan, nullptr, &t, &changed, nullptr, 0);
  require((code == FULMEN_OK) == (*fulmen_last_error() == '\0'),
          "a failure has a message, a success has none");
  require(code != FULMEN_INTERNAL, "a mistake is the caller's");
  fulmen_plan* exact = nullptr;
  const int made = fulmen_plan_at(plan, &t, &changed, &exact);
  require((made == FULMEN_OK) == (exact != nullptr), "a plan, or an error");
  if (code == FULMEN_OK)
    require(fulmen_plan_run(exact, nullptr, &t, nullptr, 0) == FULMEN_OK, "its own plan runs, too");
  fulmen_plan_destroy(exact);
}

void run(Bytes& in, const fulmen_plan* plan, fulmen_tensors t, const fulmen_options& o,
         bool backward) {
  fulmen_problem_info info{};
  info.struct_size = sizeof info;
  require((backward ? fulmen_describe_backward : fulmen_describe)(&t, &o, &info) == FULMEN_OK,
          "a planned call is described");
  constexpr double kMostFlops = 1e6;
  // The reference takes memory for them, also where rows of stride 0 take none.
  constexpr int64_t kMostKeys = 65536;
  const int64_t pages = std::max<int64_t>(t.block_table.shape[3], 1);
  if (t.k.shape[1] > kMostKeys / pages) return;
  Memory memory;
  if (!(info.flops <= kMostFlops) || t.struct_size != sizeof t || !give(in, t, backward, memory))
    return;
  if (backward) {  // lse and out are to be those of the inputs
    fulmen_options forward = o;
    forward.kernel = nullptr;
    // Fields of a newer one are not copied.
    forward.struct_size = std::min(forward.struct_size, sizeof forward);
    if (fulmen_attention(&t, &forward, "cpu") != FULMEN_OK) return;
  }
  if (!backward) run_with(in, plan, t);
  const int code = fulmen_plan_run(plan, nullptr, &t, nullptr, 0);
  require((code == FULMEN_OK) == (*fulmen_last_error() == '\0'),
          "a failure has a message, a success has none");
  if (code == FULMEN_OUT_OF_MEMORY || code == FULMEN_INVALID_ARGUMENT) return;
  require(code == FULMEN_OK, info.text);
  if (std::abs(o.softmax_scale) > 2) return;  // rounding of huge scores
  fulmen_verify_report report{};
  report.struct_size = sizeof report;
  require(
      (backward ? fulmen_check_sequences_backward : fulmen_check_sequences)(&t, &o) == FULMEN_OK,
      "the plan ran, so its sequences were right");
  require((backward ? fulmen_zero_unused_rows_backward : fulmen_zero_unused_rows)(
              &t, &o, "cpu", nullptr) == FULMEN_OK,
          "the plan ran, so its packed results have rows");
  const int verified = (backward ? fulmen_verify_backward : fulmen_verify)(&t, &o, &report);
  // The rule's bounds are for data as networks have it: with random bytes a few results differ by
  // more. A mistake differs by far more.
  constexpr double kManyBounds = 100;
  const bool near = verified == FULMEN_VERIFICATION_FAILED &&
                    report.worst_error <= kManyBounds * report.bound && report.lse_error <= 1e-3;
  require(verified == FULMEN_OK || near, fulmen_plan_explain(plan));
}

}  // namespace

// An allocation that exceeds the machine's memory fails, as without the sanitizer.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  const int mode = in.next();
  const bool backward = (mode & 1) != 0, of_grid = (mode & 6) == 6;
  // Sizes beyond the structs are bent, too: the bytes behind a struct are 0.
  Roomy<fulmen_tensors> tensors{};
  Roomy<fulmen_options> options{};
  fulmen_tensors& t = tensors.call;
  fulmen_options& o = options.call;
  GridCall grid;
  if (of_grid) {
    grid = grid_call(in, backward);
    t = grid.tensors;
    o = grid.options;
  } else {
    t = right_call(in, backward);
    fulmen_options_init(&o);
  }
  o.num_threads = 1;
  if (!of_grid && t.cu_seqlens_q.shape[3] != 0) o.max_seqlen_q = in.next();
  if (!of_grid && t.cu_seqlens_k.shape[3] != 0 && t.block_table.shape[3] == 0)
    o.max_seqlen_k = in.next();
  const int bends = in.next() % 4;
  if (bends > 0) {  // a tensor that is bent may be larger than what an entry's table holds
    for (const auto& [name, member] : kCTensors) (t.*member).data = nullptr;
  }
  for (int n = 0; n < bends; ++n) bend(in, t, o);

  // Any kernel that supports the problem; for 255, and for a problem that is refused, the one that
  // is chosen.
  struct Names {
    std::vector<std::string> all;
  } names;
  const auto visit = [](void* context, const char* kernel, bool supported, const char*, double) {
    if (supported) static_cast<Names*>(context)->all.emplace_back(kernel);
  };
  (backward ? fulmen_visit_candidates_backward : fulmen_visit_candidates)(&t, &o, "cpu", visit,
                                                                          &names);
  // GPU kernels are only asked whether they support it: planning would compile them.
  const auto ignore = [](void*, const char*, bool, const char*, double) {};
  constexpr std::array<const char*, 4> kChips{"emulated:gfx1100", "emulated:gfx942",
                                              "emulated:sm_90", "emulated:gfx1201"};
  (backward ? fulmen_visit_candidates_backward : fulmen_visit_candidates)(&t, &o, in.pick(kChips),
                                                                          ignore, nullptr);
  if (!names.all.empty()) o.kernel = names.all[in.next() % names.all.size()].c_str();

  fulmen_plan* plan = nullptr;
  const int code =
      (backward ? fulmen_plan_create_backward : fulmen_plan_create)(&t, &o, "cpu", &plan);
  require((code == FULMEN_OK) == (plan != nullptr), "a plan, or an error");
  require((code == FULMEN_OK) == (*fulmen_last_error() == '\0'),
          "a failure has a message, a success has none");
  require(code != FULMEN_INTERNAL, "a mistake is the caller's");
  if (plan == nullptr) return 0;
  require(*fulmen_plan_explain(plan) != '\0', "a plan explains itself");
  static_cast<void>(fulmen_plan_workspace_bytes(plan));
  run(in, plan, t, o, backward);
  fulmen_plan_destroy(plan);
  return 0;
}
