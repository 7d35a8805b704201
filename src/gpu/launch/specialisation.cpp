#include "gpu/launch/specialisation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "gpu/launch/quantized.h"
#include "runtime/sequence_view.h"

namespace fulmen::gpu {
namespace {

constexpr float kLog2E = 1.4426950408889634F;
constexpr int64_t kPieceElements = 8;  // 16 bytes of 16-bit elements; fp32: 32 bytes
// Blocks of k and v move as pieces of 2 bytes.
int64_t piece_elements(const Problem& p, const TensorSpec& spec) {
  const bool blocks = (&spec == &p.k || &spec == &p.v) && block_bytes(spec.dtype) > 0;
  return blocks ? 2 : kPieceElements;
}
// Rows of a tile are reached by distances of 32 bits: 256 rows of 2^21 elements of 2 bytes.
constexpr int64_t kMostRowStride = int64_t{1} << 21U;

// Logical [batch, head, query, key].
kernels::View score_view_of(const TensorSpec& spec, const void* data = nullptr) {
  return {data, spec.strides[0], spec.strides[2], spec.strides[1]};
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return result;
}

// A constant for sizes that are usual and quickly divided by; one kernel serves all others.
int page_size(const Problem& p) {
  if (!p.paged()) return 0;
  constexpr int64_t kLeast = 16, kMost = 1024;
  const bool usual =
      p.page_size >= kLeast && p.page_size <= kMost && (p.page_size & (p.page_size - 1)) == 0;
  return usual ? static_cast<int>(p.page_size) : -1;
}

}  // namespace

bool strides_are_whole(const Problem& p) {
  if (p.head_dim % kPieceElements != 0 || p.head_dim_v % kPieceElements != 0) return false;
  for (const TensorSpec* spec : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    const int64_t piece = piece_elements(p, *spec);
    for (int d = 0; d < 3; ++d) {
      if (spec->strides[d] % piece != 0) return false;
    }
    if (spec->strides[1] > kMostRowStride) return false;
  }
  return true;
}

bool tiles_in_pages(const Problem& p, int block_n) {
  return p.paged() && p.page_size % block_n == 0 && !p.leftpad_k.present;
}

bool bias_is_whole(const Problem& p) {
  if (!p.bias.present || p.seqlen_k % kPieceElements != 0 || p.window_left >= 0) return false;
  for (int d = 0; d < 3; ++d) {
    if (p.bias.strides[d] % kPieceElements != 0) return false;
  }
  return true;
}

Specialisation helper_kernel(const Specialisation& products, std::string_view entry,
                             int workgroup) {
  Specialisation s;
  s.entry = entry;
  s.workgroup = workgroup;
  s.dtype = products.dtype;
  s.kv_dtype = s.v_dtype = products.quantized != 0 ? products.dtype : products.kv_dtype;
  s.head_dim = products.head_dim;
  s.head_dim_v = products.head_dim_v;
  s.block_m = products.block_m;
  s.block_n = products.block_n;
  s.whole_rows = products.whole_rows;
  s.sinks = products.sinks;
  s.variable = products.variable;
  s.splits = products.splits;
  s.backward = products.backward;
  s.bias_gradient = products.bias_gradient;
  return s;
}

int mask_parts(const Problem& p) {
  return (p.keep_mask.present ? kMaskOfBytes : 0) + (has_mask_mod(p) ? kMaskOfFunction : 0) +
         (p.has_block_mask() ? kMaskOfBlocks : 0);
}

bool scales_alone(const Problem& p) {
  return !p.bias.present && !p.alibi_slopes.present && p.softcap == 0 && p.softmax_scale > 0 &&
         !has_score_mod(p);
}

void specialise_for(const Problem& p, Specialisation& s) {
  s.dtype = static_cast<int>(p.dtype);
  specialise_kv(p, s);
  s.bias = p.bias.present ? static_cast<int>(p.bias.dtype) : -1;
  s.keep_mask = has_mask_parts(p) ? kMaskAsBits : p.keep_mask.present ? kMaskAsBytes : 0;
  s.alibi = p.alibi_slopes.present;
  s.softcap = p.softcap > 0;
  // The backward pass has them in the log-sum-exp.
  s.sinks = p.sinks.present && p.pass == Pass::forward;
  s.backward = p.pass == Pass::backward;
  s.dropout = p.dropout > 0;
  s.band = has_band(p);
  s.mask_parts = has_mask_parts(p) ? mask_parts(p) : 0;
  s.score_mod = has_score_mod(p);
  s.functions = score_mod_source(p);
  s.plain_scale = scales_alone(p) && s.keep_mask == 0;
  s.whole_dims = p.head_dim % kPieceElements == 0 && p.head_dim_v % kPieceElements == 0;
  s.exact_dims = p.head_dim == s.head_dim && p.head_dim_v == s.head_dim_v;
  s.whole_rows = p.dtype != DType::fp32 && strides_are_whole(p);
  s.variable = p.variable_lengths();
  s.page_size = page_size(p);
  s.tiles_in_pages = tiles_in_pages(p, s.block_n);
  // Not of a sequence's own keys.
  s.whole_bias = s.whole_rows && bias_is_whole(p) && !s.variable;
}

namespace {

// "prefill" of "forward/prefill.h"; "backward_dq" of "backward/parts/dq.h".
std::string kernel_name(const Specialisation& s) {
  constexpr std::string_view kParts = "/parts/";
  const std::string_view path = s.entry.substr(0, s.entry.find('.'));
  if (const std::size_t parts = path.find(kParts); parts != std::string_view::npos) {
    return fmt::format("{}_{}", path.substr(0, parts), path.substr(parts + kParts.size()));
  }
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

std::string entry_name(const Specialisation& s) { return "fulmen_" + kernel_name(s); }

std::string prelude(const Specialisation& s) {
  std::string text = fmt::format("#define FULMEN_ENTRY {}\n", entry_name(s));
  for (const Target* target = s.target; target != nullptr; target = target->extends) {
    text += fmt::format("#define FULMEN_TARGET_{} 1\n", upper(target->name));
  }
  if (s.target != nullptr)
    text += fmt::format("#define FULMEN_TARGET_HEADER \"targets/{}/target.h\"\n", s.target->name);
  const auto fields = std::bit_cast<std::array<int, sizeof(kernels::Configuration) / sizeof(int)>>(
      static_cast<const kernels::Configuration&>(s));
  return text + fmt::format("#define FULMEN_CONFIGURATION {}\n", fmt::join(fields, ", ")) +
         s.functions;
}

std::string to_string(const Specialisation& s) {
  std::string text =
      fmt::format("{} {} {}", kernel_name(s), s.target == nullptr ? "portable" : s.target->name,
                  fulmen::to_string(s.tensor_dtype()));
  if (s.head_dim == 0) return s.quantized != 0 ? text + kv_text(s) : text;  // a kernel for any
  text += fmt::format(" d{}", s.head_dim);
  if (const int dim_v = s.head_dim_v / s.heads_in_row; dim_v != s.head_dim)
    text += fmt::format("/{}", dim_v);
  text += fmt::format(" {}x{}", s.block_m, s.block_n);
  if (s.whole_tiles != 0) text += " whole";
  if (s.persistent != 0) text += " persistent";
  if (s.ping_pong != 0) text += " ping-pong";
  if (s.band != 0) text += " band";
  if (s.query_order != 0) text += s.query_order == 1 ? " down" : " tile by tile";
  if (s.bias >= 0) text += fmt::format(" bias={}", fulmen::to_string(static_cast<DType>(s.bias)));
  if (s.batch_bias != 0) text += " of each batch";
  if (s.keep_mask != 0) text += " keep_mask";
  if (s.alibi != 0) text += " alibi";
  if (s.softcap != 0) text += " softcap";
  if (s.score_mod != 0) text += " score_mod";
  if ((s.mask_parts & kMaskOfFunction) != 0) text += " mask_mod";
  if ((s.mask_parts & kMaskOfBlocks) != 0) text += " block mask";
  if (s.sinks != 0) text += " sinks";
  if (s.shares_tiles != 0) text += " shared tiles";
  if (s.heads_in_row > 1) text += fmt::format(" {} heads a row", s.heads_in_row);
  if (s.splits != 0) text += " splits";
  if (s.dropout != 0) text += " dropout";
  if (s.variable != 0) text += " variable";
  if (s.block_table != 0) text += " block_table";
  if (s.page_size > 0) text += fmt::format(" pages={}", s.page_size);
  if (s.page_size < 0) text += " pages";
  if (s.page_size != 0 && s.tiles_in_pages == 0) text += " any tiles";
  for (const auto& [bit, name] : {std::pair{kGivesDq, " dq"},
                                  {kGivesDk, " dk"},
                                  {kGivesDv, " dv"},
                                  {kGivesDbias, " dbias"},
                                  {kStoresDbias, " own dbias"},
                                  {kGivesTensors, " tensors"}}) {
    if ((s.outputs & bit) != 0) text += name;
  }
  // The tensors have fewer dims than the tile: each load has a condition, which takes registers.
  if (s.exact_dims == 0 && s.target != nullptr && s.heads_in_row == 1) text += " fewer dims";
  if (s.quantized != 0) text += kv_text(s);
  if (s.precision != 0)
    text += fmt::format(" {}", fulmen::to_string(static_cast<Precision>(s.precision)));
  if (s.whole_rows == 0 && (s.target != nullptr || s.tensor_dtype() != DType::fp32))
    text += " any rows";
  return text;
}

Result<CompileRequest> compile_request(const Specialisation& s, const Chip& chip,
                                       Platform platform) {
  Result<std::string> source = kernel_source(s.entry, prelude(s), chip, platform);
  if (!source.ok()) return source.status();
  return CompileRequest{to_string(s), std::move(source).value(), std::string(chip.arch),
                        s.workgroup};
}

kernels::ForwardArguments arguments_of(const Problem& p) {
  kernels::ForwardArguments a{};
  a.q = view_of(p.q);
  a.k = view_of(p.k);
  a.v = view_of(p.v);
  set_kv_strides(p, a);
  a.out = view_of(p.out);
  a.bias = score_view_of(p.bias);
  a.keep_mask = score_view_of(p.keep_mask);
  a.alibi_batch = p.alibi_slopes.strides[0];
  a.lse_batch = p.lse.strides[0];
  a.lse_head = p.lse.strides[1];
  a.lse_row = p.lse.strides[2];
  a.seqlen_q = p.seqlen_q;
  a.seqlen_k = p.seqlen_k;
  a.batch = static_cast<int>(p.batch);
  a.num_heads = static_cast<int>(p.num_heads);
  a.num_kv_heads = static_cast<int>(p.num_kv_heads);
  a.group_size = static_cast<int>(p.group_size());
  a.head_dim = static_cast<int>(p.head_dim);
  a.head_dim_v = static_cast<int>(p.head_dim_v);
  const float units = natural_units(p) ? 1.0F : kLog2E;
  a.scale = p.softcap > 0 ? p.softmax_scale / p.softcap : p.softmax_scale * units;
  a.softcap = p.softcap * units;
  a.diagonal = p.diagonal;
  a.window_left = p.window_left;
  a.window_right = p.window_right;
  a.num_splits = 1;
  a.dropout = p.dropout;
  a.dropout_scale = p.dropout_scale();
  a.rows_q = p.packed_q() ? p.total_q : p.seqlen_q;
  a.rows_k = p.packed_k()      ? p.total_k
             : !p.paged()      ? p.padded_k
             : p.num_pages > 0 ? p.max_pages * p.page_size
                               : 0;
  a.num_pages = static_cast<int>(std::min<int64_t>(p.num_pages, std::numeric_limits<int>::max()));
  a.top_left = static_cast<int>(p.top_left);
  set_function_numbers(p, a.functions);
  return a;
}

void set_pointers(const Problem& p, const AttentionTensors& t, kernels::ForwardArguments& a) {
  if (p.variable_lengths()) a.sequences = sequence_table(p, t);
  a.q.data = t.q.data;
  a.k.data = t.k.data;
  a.v.data = t.v.data;
  set_scale_pointers(p, t, a);
  a.out.data = t.out.data;
  a.bias.data = t.bias.data;
  a.keep_mask.data = t.keep_mask.data;
  a.alibi_slopes = static_cast<const float*>(t.alibi_slopes.data);
  a.sinks = static_cast<const float*>(t.sinks.data);
  a.lse = static_cast<float*>(t.lse.data);
  set_function_pointers(p, t, a.functions);
  set_block_lists(p, t, a.block_mask);
  a.dropout_keys = algorithm::dropout_keys(t.dropout_seed, t.dropout_offset);
  a.dropout_offset = static_cast<unsigned>(t.dropout_offset);
}

void set_gradients(const Problem& p, const AttentionTensors& t, kernels::BackwardArguments& a) {
  a.dout = view_of(p.dout, t.dout.data);
  a.dq = view_of(p.dq, t.dq.data);
  a.dk = view_of(p.dk, t.dk.data);
  a.dv = view_of(p.dv, t.dv.data);
  a.dbias = score_view_of(p.dbias, t.dbias.data);
  a.dlse = static_cast<const float*>(t.dlse.data);
  a.dlse_batch = p.dlse.strides[0];
  a.dlse_head = p.dlse.strides[1];
  a.dlse_row = p.dlse.strides[2];
  a.dsinks = static_cast<float*>(t.dsinks.data);
  a.softmax_scale = p.softmax_scale;
}

}  // namespace fulmen::gpu
