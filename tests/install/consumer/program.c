/* One query with two equal scores: the output is the mean of the two values, and each value's
 * gradient half of the output's. */
#include <fulmen/fulmen_c.h>
#include <stdio.h>

int main(void) {
  float q[1] = {1}, k[2] = {1, 1}, v[2] = {2, 3}, out[1], lse[1], dout[1] = {8}, dv[2];
  fulmen_tensors t;
  fulmen_options options;
  fulmen_tensors_init(&t);
  fulmen_options_init(&options);
  t.q = t.out = t.lse = t.dout = fulmen_tensor_bshd(q, FULMEN_FP32, 1, 1, 1, 1);
  t.k = t.v = t.dv = fulmen_tensor_bshd(k, FULMEN_FP32, 1, 2, 1, 1);
  t.v.data = v, t.out.data = out, t.lse.data = lse, t.dout.data = dout, t.dv.data = dv;
  if (fulmen_attention(&t, NULL, "cpu") != FULMEN_OK) return puts(fulmen_last_error()), 1;
  options.kernel = "cpu.reference.backward";
  if (fulmen_attention_backward(&t, &options, "cpu") != FULMEN_OK)
    return puts(fulmen_last_error()), 1;
  if (dv[0] != 4 || dv[1] != 4) return printf("dv is %g, %g\n", dv[0], dv[1]), 1;
  return printf("%s %g\n", fulmen_version(), out[0]) > 0 ? 0 : 1;
}
