/* One query, two keys that score the same: the output is the mean of the two values. */
#include <fulmen/fulmen_c.h>
#include <stdio.h>

int main(void) {
  const float q[1] = {1}, k[2] = {1, 1}, v[2] = {2, 3};
  float out[1];
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  t.q = fulmen_tensor_bshd(q, FULMEN_FP32, 1, 1, 1, 1); /* batch, seqlen, heads, head_dim */
  t.k = fulmen_tensor_bshd(k, FULMEN_FP32, 1, 2, 1, 1);
  t.v = fulmen_tensor_bshd(v, FULMEN_FP32, 1, 2, 1, 1);
  t.out = fulmen_tensor_bshd(out, FULMEN_FP32, 1, 1, 1, 1);
  if (fulmen_attention(&t, NULL, "cpu") != FULMEN_OK)
    return fprintf(stderr, "%s\n", fulmen_last_error()), 1;
  printf("%g\n", out[0]); /* 2.5 */
  return 0;
}
