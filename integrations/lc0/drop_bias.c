/* A seeded fault, to be preloaded: lc0's attention runs with a smolgen bias of zeros. run.sh wants
 * lc0's check to see it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "fulmen/fulmen_c.h"

typedef int (*run_function)(const fulmen_plan*, void*, const fulmen_tensors*, void*, size_t);

int fulmen_plan_run(const fulmen_plan* plan, void* stream, const fulmen_tensors* tensors, void* workspace, size_t workspace_bytes) {
  fulmen_tensors changed = *tensors;
  const run_function run = (run_function)dlsym(RTLD_NEXT, "fulmen_plan_run");
  const int64_t* shape = tensors->bias.shape;
  void* zeros = calloc((size_t)(shape[0] * shape[1] * shape[2] * shape[3]) + 1, sizeof(float));
  int status;
  if (!run || !zeros) abort();
  if (tensors->bias.data) changed.bias.data = zeros;
  status = run(plan, stream, &changed, workspace, workspace_bytes);
  free(zeros);
  return status;
}
