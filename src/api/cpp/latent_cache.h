// A KV cache of latent attention: its values are the first dims of its keys.
#pragma once

#include "fulmen/kv_cache.h"
#include "fulmen/status.h"

namespace fulmen {

// Sets problem.values_in_keys. Returns an error where new rows, scales or a rotary embedding would
// give such values something that their keys do not get.
Status check_latent_cache(const KvCacheTensors& tensors, KvCacheProblem& problem);

}  // namespace fulmen
