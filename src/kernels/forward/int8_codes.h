// Products in int8, second pass: keys and queries become codes.
//
//   k8[64, d] = round((k[64, d] - mean) * 127 / max |k - mean|)    workgroups of keys, then
//   q8[64, d] = round(q[64, d] * 127 / max |q|)                    of queries: a scale a row
//   start[64] = q[64, d] mean[d]                                   in fp32
//
// Mean and maximum are those of a head's keys. A softmax does not know the mean (what it gives is
// the same for all of a row's keys), and without it the codes have smaller steps. Codes of keys
// that no query attends are 0.
#include "forward/parts/code_pieces.h"
#include "tile/int8.h"

namespace fulmen::kernels {

constexpr CodeLayout kCodeLayout = CodeLayout::of(kHeadDim);
static_assert(kLdsBytes == kCodeLayout.total, "int8: the host reserves the LDS that codes need");

FULMEN_DEVICE float int8_scale(float most) {
  return most <= kNoNumber ? 0.0F : most * (1.0F / kLargestInt8);
}
FULMEN_DEVICE float int8_factor(float most) {
  return most <= kNoNumber ? 0.0F : kLargestInt8 / most;
}
// The nearest integer to x times the factor, ties to even, in the low byte.
FULMEN_DEVICE unsigned int8_code(float x, float factor) {
  return float_bits(fused(x, factor, kCodeOrigin));
}
FULMEN_DEVICE unsigned pack_int8(const float* x, float factor) {
  return byte_pair<false>(int8_code(x[0], factor), 0, int8_code(x[2], factor), 0) |
         byte_pair<true>(int8_code(x[1], factor), 0, int8_code(x[3], factor), 0);
}

// The mean of a head's keys to LDS; returns the largest distance from it, in all lanes.
FULMEN_DEVICE float find_mean(const ForwardArguments& a, const Int8Workspace& w, Int64 kv_head) {
  static_assert(kWorkgroup / kWaveSize <= 8, "int8: LDS has a number for each of 8 waves");
  const algorithm::KeyRange keys = band_of(a).any(0, a.seqlen_q);
  const float count = keys.end > keys.begin ? static_cast<float>(keys.end - keys.begin) : 1.0F;
  const float* const sums = int8_floats(a, w.sums) + kv_head * w.parts * kKeySums * kHeadDim;
  float range = 0;
  for (int d = thread_id(); d < kHeadDim; d += kWorkgroup) {
    float sum = 0, most = -kInfinity, most_negative = -kInfinity;
    for (Int64 part = 0; part < w.parts; ++part) {
      const float* const of_part = sums + part * kKeySums * kHeadDim + d;
      sum += global_load(of_part);
      most = larger(most, global_load(of_part + kHeadDim));
      most_negative = larger(most_negative, global_load(of_part + 2 * kHeadDim));
    }
    const float mean = sum / count;
    lds_store(4 * d, mean);
    range = larger(range, larger(most - mean, most_negative + mean));
  }
  return largest_of_workgroup(range, kCodeLayout.waves_at);
}

// 8 neighbours of the mean.
struct MeanPiece {
  float number[8];

  FULMEN_DEVICE static MeanPiece at(int dim) {
    MeanPiece mean;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto four = lds_load<Words<4> >(4 * (dim + 4 * half));
#pragma unroll
      for (int e = 0; e < 4; ++e) mean.number[4 * half + e] = bits_float(four.word[e]);
    }
    return mean;
  }
};

// A lane's pieces of a block of rows.
constexpr int kBlockPieces = kCodedRows * (kHeadDim / 8),
              kPiecesOfLane = (kBlockPieces + kWorkgroup - 1) / kWorkgroup;
using CodePlace = PiecePlace<kHeadDim>;

FULMEN_DEVICE void store_codes(unsigned char* rows, const CodePlace& place, const float (&x)[8],
                               float factor) {
  const Words<2> codes{{pack_int8(x, factor), pack_int8(x + 4, factor)}};
  global_store(reinterpret_cast<Words<2>*>(rows + place.row * kHeadDim + place.dim), codes);
}

// Block `nth` of all heads' rows. Divisions of 64 bits take long, and a launch has no more than
// 2^31 - 1 workgroups.
struct CodedBlock {
  unsigned head;
  Int64 first;

  FULMEN_DEVICE static CodedBlock of(Int64 nth, Int64 length) {
    const auto n = static_cast<unsigned>(nth),
               blocks = static_cast<unsigned>(tiles_of(length, kCodedRows));
    return {n / blocks, Int64{n % blocks} * kCodedRows};
  }
};

FULMEN_DEVICE void write_key_codes(const ForwardArguments& a, const Int8Workspace& w, Int64 nth) {
  const auto [of_all, first] = CodedBlock::of(nth, a.seqlen_k);
  const auto kv_heads = static_cast<unsigned>(a.num_kv_heads);
  const Int64 head = of_all;
  const float most = find_mean(a, w, head), factor = int8_factor(most);
  const algorithm::KeyRange keys = band_of(a).any(0, a.seqlen_q);
  const Element* const rows = at<Element>(a.k, of_all / kv_heads, first, of_all % kv_heads);
  unsigned char* const to = a.codes + w.k + (head * a.seqlen_k + first) * kHeadDim;
  const int count = at_most(a.seqlen_k - first, kCodedRows);
#pragma unroll
  for (int n = 0; n < kPiecesOfLane; ++n) {
    const auto place = CodePlace::of(n);
    if (place.row >= count) continue;
    const Int64 key = first + place.row;
    const bool counts = key >= keys.begin && key < keys.end;
    const Piece piece = piece_of(rows, a.k.row, place.row, counts, place.dim, a.head_dim);
    const auto mean = MeanPiece::at(place.dim);
    float distance[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) distance[e] = piece.number(e) - mean.number[e];
    store_codes(to, place, distance, counts ? factor : 0.0F);
  }
  if (first == 0 && thread_id() == 0)
    global_store(int8_floats(a, w.k_scales) + head, int8_scale(most));
}

FULMEN_DEVICE void write_query_codes(const ForwardArguments& a, const Int8Workspace& w, Int64 nth) {
  constexpr int kPieces = kHeadDim / 8;
  const auto [of_all, first] = CodedBlock::of(nth, a.seqlen_q);
  const auto heads = static_cast<unsigned>(a.num_heads);
  const Int64 head = of_all, batch = of_all / heads;
  const int of_batch = static_cast<int>(of_all % heads);
  find_mean(a, w, batch * a.num_kv_heads + of_batch / a.group_size);
  const Element* const rows = at<Element>(a.q, batch, first, of_batch);
  const int count = at_most(a.seqlen_q - first, kCodedRows);
  Piece pieces[kPiecesOfLane];
#pragma unroll
  for (int n = 0; n < kPiecesOfLane; ++n) {
    const auto place = CodePlace::of(n);
    if (place.row >= kCodedRows) continue;
    pieces[n] = piece_of(rows, a.q.row, place.row, place.row < count, place.dim, a.head_dim);
    const auto mean = MeanPiece::at(place.dim);
    float product = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) product = fused(pieces[n].number(e), mean.number[e], product);
    const int at = 4 * (place.row * kPieces + place.dim / 8);
    lds_store(kCodeLayout.largest_at + at, pieces[n].largest());
    lds_store(kCodeLayout.products_at + at, product);
  }
  barrier();
  const Int64 first_row = head * a.seqlen_q + first;
  for (int row = thread_id(); row < kCodedRows; row += kWorkgroup) {
    float most = 0, start = 0;
    for (int p = 0; p < kPieces; ++p) {
      const int at = 4 * (row * kPieces + p);
      most = larger(most, lds_load<float>(kCodeLayout.largest_at + at));
      start += lds_load<float>(kCodeLayout.products_at + at);
    }
    lds_store(kCodeLayout.factors_at + 4 * row, int8_factor(most));
    if (row < count) {
      global_store(reinterpret_cast<Words<2>*>(a.codes + w.q_rows) + first_row + row,
                   Words<2>{{float_bits(int8_scale(most)), float_bits(start)}});
    }
  }
  barrier();
  unsigned char* const to = a.codes + w.q + first_row * kHeadDim;
#pragma unroll
  for (int n = 0; n < kPiecesOfLane; ++n) {
    const auto place = CodePlace::of(n);
    if (place.row >= count) continue;
    const auto factor = lds_load<float>(kCodeLayout.factors_at + 4 * place.row);
    float number[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) number[e] = pieces[n].number(e);
    store_codes(to, place, number, factor);
  }
}

FULMEN_DEVICE void int8_codes(const ForwardArguments& a) {
  const Int8Workspace w = int8_workspace(a);
  const Int64 keys =
      static_cast<Int64>(a.batch) * a.num_kv_heads * tiles_of(a.seqlen_k, kCodedRows);
  const Int64 id = workgroup_id();
  if (id < keys) {
    write_key_codes(a, w, id);
  } else {
    write_query_codes(a, w, id - keys);
  }
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::int8_codes)
