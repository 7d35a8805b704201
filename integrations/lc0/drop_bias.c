/* A seeded fault, to be preloaded: lc0's attention runs with a smolgen bias of zeros. run.sh and
 * cuda.sh want lc0's check to see it. For one thread, and not for a captured stream. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "fulmen/fulmen_c.h"

typedef int (*run_function)(const fulmen_plan*, void*, const fulmen_tensors*, void*, size_t);
typedef int (*allocate_function)(void**, size_t, unsigned);

/* Zeros that the plan's device reads: managed memory where CUDA's runtime is loaded, else the
 * host's. Kept, as a GPU may still read them when the call returns. */
static void* zeros(size_t bytes) {
  static void* memory;
  static size_t has;
  const allocate_function managed = (allocate_function)dlsym(RTLD_DEFAULT, "cudaMallocManaged");
  const unsigned everywhere = 1; /* cudaMemAttachGlobal */
  if (bytes <= has) return memory;
  memory = NULL;
  if (!managed || managed(&memory, bytes, everywhere)) memory = malloc(bytes);
  if (!memory) abort();
  has = bytes;
  return memset(memory, 0, bytes);
}

int fulmen_plan_run(const fulmen_plan* plan, void* stream, const fulmen_tensors* tensors,
                    void* workspace, size_t workspace_bytes) {
  fulmen_tensors changed = *tensors;
  const run_function run = (run_function)dlsym(RTLD_NEXT, "fulmen_plan_run");
  const int64_t* shape = tensors->bias.shape;
  if (!run) abort();
  if (tensors->bias.data)
    changed.bias.data =
        zeros((size_t)(shape[0] * shape[1] * shape[2] * shape[3]) * sizeof(float) + 1);
  return run(plan, stream, &changed, workspace, workspace_bytes);
}
