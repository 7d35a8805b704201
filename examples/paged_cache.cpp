// A step of generation for two sequences whose keys and values lie in pages of one pool: append the
// new token's, then attend.
#include <fulmen/fulmen.h>

#include <cstdio>
#include <vector>

using fulmen::DType, fulmen::Status, fulmen::Tensor;

int main() {
  constexpr int64_t batch = 2, heads = 8, kv_heads = 2, dim = 64, pages = 6, page_size = 16;
  const auto zeros = [](int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count));
  };
  std::vector<float> pool_k = zeros(pages * page_size * kv_heads * dim), pool_v = pool_k;
  std::vector<float> q(batch * heads * dim, 1), k(batch * kv_heads * dim, 1),
      v(batch * kv_heads * dim, 8), out = zeros(batch * heads * dim);
  std::vector<int> used{31, 7}, now(batch),
      table{5, 2, 0, 0};  // the first sequence has pages 5 and 2, the second one page 0
  const auto int32 = [](std::vector<int>& x, int64_t rows, int64_t columns) {
    return Tensor::matrix(x.data(), DType::int32, rows, columns);
  };

  fulmen::KvCacheTensors cache;
  cache.k_cache = Tensor::bshd(pool_k.data(), DType::fp32, pages, page_size, kv_heads, dim);
  cache.v_cache = Tensor::bshd(pool_v.data(), DType::fp32, pages, page_size, kv_heads, dim);
  cache.block_table = int32(table, batch, 2);
  cache.seqlens_k = int32(used, 1, batch);
  cache.k_new = Tensor::bshd(k.data(), DType::fp32, batch, 1, kv_heads, dim);
  cache.v_new = Tensor::bshd(v.data(), DType::fp32, batch, 1, kv_heads, dim);
  cache.seqlens_k_out = int32(now, 1, batch);
  if (const Status status = fulmen::append_kv(cache); !status.ok())
    return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;

  fulmen::AttentionTensors t;
  t.q = Tensor::bshd(q.data(), DType::fp32, batch, 1, heads, dim);
  t.out = Tensor::bshd(out.data(), DType::fp32, batch, 1, heads, dim);
  t.k = cache.k_cache;
  t.v = cache.v_cache;
  t.block_table = cache.block_table;
  t.seqlens_k = cache.seqlens_k_out;
  fulmen::AttentionOptions options;
  options.softmax_scale = 0;  // the mean of a sequence's values: 8 / 32 and 8 / 8
  options.verify = true;
  const Status status = fulmen::attention(t, options);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("%d %d %g %g\n", now[0], now[1], static_cast<double>(out[0]),
              static_cast<double>(out[heads * dim]));
}
