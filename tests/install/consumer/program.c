/* One query with two equal scores: the output is the mean of the two values. */
#include <fulmen/fulmen_c.h>
#include <stdio.h>

int main(void) {
  float q[1] = {1}, k[2] = {1, 1}, v[2] = {2, 3}, out[1];
  fulmen_tensors t;
  fulmen_tensors_init(&t);
  t.q = t.out = (fulmen_tensor){q, FULMEN_FP32, {1, 1, 1, 1}, {1, 1, 1, 1}};
  t.k = t.v = (fulmen_tensor){k, FULMEN_FP32, {1, 2, 1, 1}, {2, 1, 1, 1}};
  t.v.data = v, t.out.data = out;
  if (fulmen_attention(&t, NULL, "cpu") != FULMEN_OK) return puts(fulmen_last_error()), 1;
  return printf("%s %g\n", fulmen_version(), out[0]) > 0 ? 0 : 1;
}
