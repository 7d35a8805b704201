// The tensors of append_kv(), by where each is in its structs.
#pragma once

#include <array>

#include "fulmen/kv_cache.h"
#include "fulmen/tensor_member.h"

namespace fulmen {

struct KvCacheField {
  const char* name;
  TensorMember<KvCacheTensors> tensor;
  TensorSpec KvCacheProblem::* spec;
  bool written;
};
// Those that are written come first.
inline constexpr std::array<KvCacheField, 13> kKvCacheFields{
    {{"k_cache", &KvCacheTensors::k_cache, &KvCacheProblem::k_cache, true},
     {"v_cache", &KvCacheTensors::v_cache, &KvCacheProblem::v_cache, true},
     {"q_out", &KvCacheTensors::q_out, &KvCacheProblem::q_out, true},
     {"seqlens_k_out", &KvCacheTensors::seqlens_k_out, &KvCacheProblem::seqlens_k_out, true},
     {"k_scale", &KvCacheTensors::k_scale, &KvCacheProblem::k_scale, true},
     {"v_scale", &KvCacheTensors::v_scale, &KvCacheProblem::v_scale, true},
     {"seqlens_k", &KvCacheTensors::seqlens_k, &KvCacheProblem::seqlens_k, false},
     {"block_table", &KvCacheTensors::block_table, &KvCacheProblem::block_table, false},
     {"k_new", &KvCacheTensors::k_new, &KvCacheProblem::k_new, false},
     {"v_new", &KvCacheTensors::v_new, &KvCacheProblem::v_new, false},
     {"rotary_cos", &KvCacheTensors::rotary_cos, &KvCacheProblem::rotary_cos, false},
     {"rotary_sin", &KvCacheTensors::rotary_sin, &KvCacheProblem::rotary_sin, false},
     {"q", &KvCacheTensors::q, &KvCacheProblem::q, false}}};

}  // namespace fulmen
