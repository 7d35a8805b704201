// Appending to a KV cache as a custom call of XLA.
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "kv_cache.h"
#include "xla/xla.h"
#include "xla/xla_frame.h"
#include "xla/xla_gpu.h"

namespace fulmen::python::xla {
namespace {

struct Operand {
  fulmen_tensor fulmen_kv_cache::* member;
  Mapped mapped;
};

// Arguments are those of kCacheTensors that the attribute names, results the two caches, the
// lengths and, with queries, these.
int append(const CallFrame& frame, Platform platform) {
  const Attributes& attributes = frame.attributes;
  const auto read = [&](const char* name) {
    return number<int64_t>(attributes, name, DataType::int64, 0);
  };
  const Buffers &arguments = frame.arguments, &results = frame.results;
  fulmen_kv_cache call;
  fulmen_kv_cache_init(&call);
  call.rotary_interleaved = read("rotary_interleaved") != 0;
  call.queries_advance = read("queries_advance") != 0;
  call.num_threads = static_cast<int32_t>(read("num_threads"));
  call.validate = read("validate") != 0;
  const std::string device = text(attributes, "device");
  std::optional<Gpu> gpu;
  if (platform != Platform::host)
    gpu.emplace(frame, platform == Platform::cuda ? "cuda" : "hip", device);
  const Buffer& k_cache = *arguments.buffers[kCacheK];
  const int leading = static_cast<int>(k_cache.rank) - 4;
  const std::vector<int64_t> sizes(k_cache.dims, k_cache.dims + leading);

  std::vector<Operand> operands;
  const auto add = [&](fulmen_tensor fulmen_kv_cache::* member, const Buffer& buffer) {
    call.*member = in_four_dims(view_of(buffer, leading));
    operands.push_back({member, Mapped(buffer, leading)});
  };
  int64_t next = 0;
  for (int at = 0; at < kCachePlaces; ++at) {
    if ((read("arguments") >> at & 1) == 0) continue;
    const Buffer& buffer = *arguments.buffers[next++];
    if (at > kCacheV) add(kCacheTensors[at].member, buffer);
  }
  constexpr fulmen_tensor fulmen_kv_cache::* kResults[] = {
      &fulmen_kv_cache::k_cache, &fulmen_kv_cache::v_cache, &fulmen_kv_cache::seqlens_k_out,
      &fulmen_kv_cache::q_out};
  for (int64_t at = 0; at < results.size; ++at) add(kResults[at], *results.buffers[at]);
  int64_t calls = 1;
  for (const int64_t size : sizes) calls *= size;
  for (const int at : {kCacheK, kCacheV}) {
    // The result is declared to alias the argument; if XLA has not aliased them, the rows are
    // copied.
    const Buffer &from = *arguments.buffers[at], &to = *results.buffers[at];
    if (from.data == to.data) continue;
    if (gpu)
      throw Refused(FULMEN_INTERNAL, "fulmen: XLA has not put the new cache where the old is");
    std::memcpy(to.data, from.data, static_cast<size_t>(calls * Mapped(from, leading).bytes));
  }
  for (int64_t n = 0; n < calls; ++n) {
    for (const Operand& operand : operands)
      (call.*operand.member).data = operand.mapped.part(n, sizes);
    const int status = gpu ? fulmen_append_kv(&call, gpu->name(), gpu->stream())
                           : append_on_host(call, device.empty() ? nullptr : device.c_str());
    if (status != FULMEN_OK) return status;
  }
  return FULMEN_OK;
}

}  // namespace

template <Platform platform>
Error* append_kv(CallFrame* frame) {
  return handle(frame, [&] { return append(*frame, platform); });
}
template Error* append_kv<Platform::host>(CallFrame* frame);
template Error* append_kv<Platform::cuda>(CallFrame* frame);
template Error* append_kv<Platform::rocm>(CallFrame* frame);

}  // namespace fulmen::python::xla
