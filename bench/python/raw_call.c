/* The calls that the Python binding ends in, without Python: what its overhead is counted from. Run
 * by bench.py and gpu.py. */
#include <fulmen/fulmen_c.h>
#include <time.h>

static fulmen_tensor bshd(void* data, const int64_t shape[4], int32_t dtype) {
  return fulmen_tensor_bshd(data, dtype, shape[0], shape[1], shape[2], shape[3]);
}

static fulmen_tensors tensors_of(void* q, void* k, void* v, void* out, const int64_t shape[4],
                                 int32_t dtype) {
  fulmen_tensors tensors;
  fulmen_tensors_init(&tensors);
  tensors.q = bshd(q, shape, dtype);
  tensors.k = bshd(k, shape, dtype);
  tensors.v = bshd(v, shape, dtype);
  tensors.out = bshd(out, shape, dtype);
  return tensors;
}

static double microseconds(const struct timespec* begin) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((double)(end.tv_sec - begin->tv_sec) * 1e9 + (double)(end.tv_nsec - begin->tv_nsec)) /
         1e3;
}

/* Microseconds a call of fulmen_attention takes on the CPU, planning included; negative after an
 * error. */
double raw_call(void* q, void* k, void* v, void* out, const int64_t shape[4], int64_t calls) {
  const fulmen_tensors tensors = tensors_of(q, k, v, out, shape, FULMEN_FP32);
  fulmen_options options;
  fulmen_options_init(&options);
  struct timespec begin;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t n = 0; n < calls; ++n) {
    if (fulmen_attention(&tensors, &options, "") != FULMEN_OK) return -1;
  }
  return microseconds(&begin) / (double)calls;
}

/* Microseconds of the caller that a run of a plan takes on a device, in a stream; negative after an
 * error. The workspace is as large as the plan says. */
double raw_run(void* q, void* k, void* v, void* out, const int64_t shape[4], int32_t dtype,
               const char* device, void* stream, void* workspace, int64_t runs) {
  const fulmen_tensors tensors = tensors_of(q, k, v, out, shape, dtype);
  fulmen_options options;
  fulmen_options_init(&options);
  fulmen_plan* plan = NULL;
  if (fulmen_plan_create(&tensors, &options, device, &plan) != FULMEN_OK) return -1;
  const size_t bytes = fulmen_plan_workspace_bytes(plan);
  int status = fulmen_plan_run(plan, stream, &tensors, workspace, bytes);
  struct timespec begin;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int64_t n = 0; n < runs && status == FULMEN_OK; ++n)
    status = fulmen_plan_run(plan, stream, &tensors, workspace, bytes);
  const double taken = microseconds(&begin);
  fulmen_plan_destroy(plan);
  return status == FULMEN_OK ? taken / (double)runs : -1;
}
