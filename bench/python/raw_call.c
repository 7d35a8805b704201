/* The call that the Python binding ends in, without Python: what its overhead is counted from. Run by bench.py. */
#include <fulmen/fulmen_c.h>
#include <time.h>

static fulmen_tensor bshd(void* data, const int64_t shape[4]) {
  fulmen_tensor t = {data, FULMEN_FP32, {0}, {0}};
  int64_t stride = 1;
  for (int d = 3; d >= 0; --d) {
    t.shape[d] = shape[d];
    t.strides[d] = stride;
    stride *= shape[d];
  }
  return t;
}

/* Microseconds a call of fulmen_attention takes, planning included; negative after an error. */
double raw_call(void* q, void* k, void* v, void* out, const int64_t shape[4], int64_t calls) {
  fulmen_tensors tensors;
  fulmen_tensors_init(&tensors);
  tensors.q = bshd(q, shape);
  tensors.k = bshd(k, shape);
  tensors.v = bshd(v, shape);
  tensors.out = bshd(out, shape);
  fulmen_options options;
  fulmen_options_init(&options);
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t n = 0; n < calls; ++n) {
    if (fulmen_attention(&tensors, &options, "") != FULMEN_OK) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / 1e3 / (double)calls;
}
