/* Seeded faults of the attention that a program asks for, to be preloaded. CANDLE_FAULT names one;
 * ./check wants the program to see each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "fulmen/fulmen_c.h"

typedef int (*attention_function)(const fulmen_tensors*, const fulmen_options*, const char*, void*);

int fulmen_attention_in_stream(const fulmen_tensors* tensors, const fulmen_options* options,
                               const char* device, void* stream) {
  const attention_function attention =
      (attention_function)dlsym(RTLD_NEXT, "fulmen_attention_in_stream");
  const char* fault = getenv("CANDLE_FAULT");
  fulmen_tensors other_tensors = *tensors;
  fulmen_options other_options = *options;
  if (!attention || !fault) abort();
  if (!strcmp(fault, "scale")) other_options.softmax_scale *= 1.0001f;
  if (!strcmp(fault, "later tokens")) other_options.window_right = -1;
  if (!strcmp(fault, "mask")) memset(&other_tensors.bias, 0, sizeof other_tensors.bias);
  return attention(&other_tensors, &other_options, device, stream);
}
