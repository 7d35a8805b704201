// Calls of the C ABI in any order, with arguments that are right, null or bent: every function that
// c_structs_fuzz and kv_cache_fuzz do not call, in one process with one state (default device,
// backends, hooks). No call may crash, access memory out of bounds, leak, or report a wrong status.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/fulmen_c.h"
#include "fuzz/call_bytes.h"

using namespace fulmen::fuzz;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, fulmen_last_error());
  std::abort();
}

// Checks a call that returns a status: it has a message exactly if it failed, and the failure is
// the caller's fault.
int told(int code) {
  require((code == FULMEN_OK) == (*fulmen_last_error() == '\0'),
          "a failure has a message, a success has none");
  require(code != FULMEN_INTERNAL, "a mistake is the caller's");
  require(std::strcmp(fulmen_status_name(code), "unknown status") != 0, "a status has a name");
  return code;
}

// Unknown names are rare: their message names every device, so vendors' libraries are looked for,
// which takes 3 ms.
constexpr std::array<const char*, 32> kDevices{
    "cpu", "cpu",    "cpu", "cpu",   "cpu", "fuzzed", "cpu", "cpu",    "cpu", "fuzzed", "cpu",
    "cpu", "fuzzed", "cpu", "cpu:0", "cpu", "fuzzed", "cpu", "fuzzed", "cpu", "cpu",    "cpu",
    "cpu", nullptr,  "cpu", "cpu",   "cpu", "abacus", "cpu", nullptr,  "",    ":"};

// A small call, all of whose tensors have memory of exactly their size, with values that every
// dtype has.
struct SmallCall {
  static constexpr std::array<int64_t, 8> kSizes{1, 2, 3, 4, 5, 9, 17, 0};
  Memory memory;
  int64_t b, sq, sk, kv, h, d;
  int32_t dtype;
  fulmen_tensors t;
  fulmen_options o;

  explicit SmallCall(Bytes& in)
      : b(in.pick(kSizes)),
        sq(in.pick(kSizes)),
        sk(in.pick(kSizes)),
        kv(1 + in.next() % 2),
        h(kv * (1 + in.next() % 2)),
        d(1 + in.next() % 20),
        dtype(in.next() % 3) {
    fulmen_tensors_init_sized(&t, sizeof t);
    fulmen_options_init_sized(&o, sizeof o);
    o.num_threads = 1;
    const int features = in.next();
    const bool bhsd = (features & 1) != 0;
    const auto rows = [&](int64_t seqlen, int64_t heads) {
      return with_memory(bhsd ? fulmen_tensor_bhsd(nullptr, dtype, b, seqlen, heads, d)
                              : fulmen_tensor_bshd(nullptr, dtype, b, seqlen, heads, d));
    };
    t.q = rows(sq, h);
    t.k = rows(sk, kv);
    t.v = rows(sk, kv);
    t.out = rows(sq, h);
    t.dout = rows(sq, h);
    t.dq = rows(sq, h);
    t.dk = rows(sk, kv);
    t.dv = rows(sk, kv);
    t.lse = with_memory(fulmen_tensor_bhqk(nullptr, FULMEN_FP32, b, h, sq, 1));
    if ((features & 2) != 0) t.bias = with_memory(fulmen_tensor_bhqk(nullptr, dtype, 1, h, sq, sk));
    if ((features & 4) != 0) t.dbias = (features & 2) != 0 ? with_memory(t.bias) : fulmen_tensor{};
    if ((features & 8) != 0) t.sinks = with_memory(fulmen_tensor_1d(nullptr, FULMEN_FP32, h));
    if ((features & 8) != 0) t.dsinks = with_memory(t.sinks);
    if ((features & 16) != 0) o.dropout = 0.25F;
    if ((features & 32) != 0) o.causal = FULMEN_CAUSAL_BOTTOM_RIGHT;
    if ((features & 64) != 0) o.kernel = "cpu.reference.double";
    if ((features & 128) != 0) {
      t.seqlens_k = with_memory(fulmen_tensor_1d(nullptr, FULMEN_INT32, b));
      // A page of the whole sequence's length each.
      t.block_table = with_memory(fulmen_tensor_2d(nullptr, FULMEN_INT32, b, 1));
      for (int64_t n = 0; n < b; ++n) {
        static_cast<int32_t*>(t.seqlens_k.data)[n] = static_cast<int32_t>(n % (sk + 1));
        static_cast<int32_t*>(t.block_table.data)[n] = static_cast<int32_t>(n);
      }
    }
    // At most one argument is wrong.
    fulmen_tensor* const all[] = {&t.q, &t.k, &t.v, &t.out, &t.lse, &t.dout, &t.dq, &t.bias};
    fulmen_tensor& one = *all[in.next() % std::size(all)];
    switch (in.next() % 16) {
      case 0:
        one.data = nullptr;
        break;
      case 1:
        one.shape[in.next() % 4] += 1;
        break;
      case 2:
        one.reserved[in.next() % 2] = in.next();
        break;
      case 3:
        one = {};
        break;
      case 4:
        one.dtype = 15 + in.next();  // unknown: a known one may need more memory than was taken
        break;
      default:;
    }
  }

  fulmen_tensor with_memory(fulmen_tensor tensor) {
    const std::size_t bytes = elements(tensor) * size_of(tensor.dtype);
    tensor.data = memory.take(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      static_cast<unsigned char*>(tensor.data)[i] = (i & 1) != 0 ? 0x3C : 0;
    return tensor;
  }
};

int fill(void*, void*, const fulmen_tensors* t, const fulmen_options*) {
  const std::size_t bytes = elements(t->out) * size_of(t->out.dtype);
  if (bytes != 0) std::memset(t->out.data, 0, bytes);
  return FULMEN_OK;
}

int taken = 0;  // allocations by the program's allocator
void* allocate(void*, std::size_t bytes, std::size_t alignment) {
  ++taken;  // a struct that ends before the context has none
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void give_back(void*, void* memory, std::size_t) {
  --taken;
  std::free(memory);
}

int64_t product(const fulmen_tensor& t) {
  return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
}

void computing_calls(Bytes& in) {
  SmallCall call(in);
  const fulmen_tensors& t = call.t;
  const char* const device = in.pick(kDevices);
  const auto doubles = [&](int64_t count) {
    return static_cast<double*>(call.memory.take(static_cast<std::size_t>(count) * sizeof(double)));
  };
  const int64_t rows = t.q.shape[0] * t.q.shape[1] * t.q.shape[2];  // of queries, in all heads
  constexpr int kNotExpected = -1;
  const auto visit = [](void*, const char* tensor, double, double, double) {
    require(*tensor != '\0', "a gradient has a name");
  };
  int code = kNotExpected;
  switch (in.next() % 9) {
    case 0:
      code = told(fulmen_attention_in_stream(&t, &call.o, device, nullptr));
      break;
    case 1:
      code = told(fulmen_attention(&t, &call.o, device));
      if (code != FULMEN_OK) return;
      call.o.kernel = nullptr;
      code = told(fulmen_attention_backward(&t, &call.o, device));
      if (code == FULMEN_OK) told(fulmen_visit_gradient_errors(&t, &call.o, visit, nullptr));
      return;
    case 2:
      call.o.kernel = nullptr;
      code = told(fulmen_attention_backward_in_stream(&t, &call.o, device, nullptr));
      break;
    case 3:
      code = told(fulmen_reference(&t, &call.o, doubles(rows * t.v.shape[3]),
                                   (in.next() & 1) != 0 ? doubles(rows) : nullptr));
      break;
    case 4:
      code = told(fulmen_reference_backward(
          &t, &call.o, doubles(product(t.q)), doubles(product(t.k)), doubles(product(t.v)),
          t.dbias.data != nullptr ? doubles(product(t.dbias)) : nullptr,
          t.dsinks.data != nullptr ? doubles(product(t.dsinks)) : nullptr));
      break;
    case 5:
      code = told(fulmen_dropout_mask(
          &t, &call.o,
          (in.next() & 7) != 0
              ? static_cast<uint8_t*>(call.memory.take(static_cast<std::size_t>(rows * call.sk)))
              : nullptr));
      break;
    case 6: {
      fulmen_plan* plan = nullptr;
      code = told(fulmen_plan_create(&t, &call.o, device, &plan));
      require(*fulmen_plan_device(plan) != '\0' || plan == nullptr, "a plan has a device");
      fulmen_kernel_config config{};
      config.struct_size = (in.next() & 3) != 0 ? sizeof config : in.next();
      if (config.struct_size <= sizeof config) told(fulmen_plan_config(plan, &config));
      fulmen_plan_destroy(plan);
      break;
    }
    default: {
      constexpr std::size_t kElements = 2 * 3 * 2 * 8;
      std::array<std::array<uint16_t, kElements>, 8> x{};
      FlashAttnParams params{2, 3, 2, 8, (in.next() & 1) != 0, 0.0F};
      if (in.next() % 8 == 0) params.seq_len = SIZE_MAX;
      if (in.next() % 8 == 0) params.head_dim = 0;
      told(flash_attn_forward(x[0].data(), x[1].data(), x[2].data(),
                              in.next() % 8 == 0 ? nullptr : x[3].data(), &params));
      told(flash_attn_backward(x[4].data(), x[0].data(), x[1].data(), x[2].data(), x[3].data(),
                               x[5].data(), x[6].data(), in.next() % 4 == 0 ? nullptr : x[7].data(),
                               in.next() % 16 == 0 ? nullptr : &params));
    }
  }
}

void device_calls(Bytes& in) {
  const char* const device = in.pick(kDevices);
  switch (in.next() % 6) {
    case 0: {
      void* memory = nullptr;
      const std::size_t bytes = in.next();
      if (told(fulmen_device_allocate(device, in.next() % 16 == 0 ? SIZE_MAX - bytes : bytes,
                                      &memory)) != FULMEN_OK)
        return;
      std::array<unsigned char, 256> from{}, to{};
      from.fill(in.next());
      told(fulmen_device_copy(device, memory, from.data(), bytes));
      told(fulmen_device_synchronize(device, nullptr));
      told(fulmen_device_copy(device, to.data(), memory, bytes));
      require(std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(bytes), from.begin()),
              "a copy there and back");
      fulmen_device_free(device, memory);
      return;
    }
    case 1:
      told(fulmen_device_copy(device, nullptr, nullptr, in.next()));
      return;
    case 2:
      told(fulmen_set_default_device(in.next() % 4 == 0 ? nullptr : device));
      require(*fulmen_default_device() != '\0', "there is a default device");
      return;
    case 3:
      if (in.next() % 16 != 0) return;  // it looks for vendors' libraries, too
      told(fulmen_visit_devices(
          [](void*, const fulmen_device_info* d) {
            require(*d->name != '\0', "a device has a name");
          },
          nullptr));
      return;
    case 4:
      told(fulmen_visit_kernels(
          in.next() % 8 == 0
              ? nullptr
              : +[](void*, const char* backend, const char* kernel, const char*) {
                  require(std::strncmp(backend, kernel, std::strlen(backend)) == 0, "a kernel's name begins with its backend's");
                },
          nullptr));
      return;
    default:
      fulmen_device_free(device, nullptr);
      require(*fulmen_version() != '\0', "there is a version");
  }
}

void state_calls(Bytes& in) {
  switch (in.next() % 6) {
    case 0: {
      Roomy<fulmen_backend> backend{};
      backend.call.struct_size =
          in.next() % 4 != 0 ? sizeof(fulmen_backend) : in.next() * std::size_t{8};
      backend.behind[0] = in.next() % 4 == 0 ? 1 : 0;
      backend.call.name = in.next() % 8 == 0 ? nullptr : in.next() % 8 == 0 ? "cpu" : "fuzzed";
      backend.call.kernel_name = in.next() % 8 == 0 ? nullptr : "fuzzed.fill";
      backend.call.rank = in.next() % 2;
      backend.call.run = in.next() % 8 == 0 ? nullptr : fill;
      backend.call.features = in.next() % 5;
      backend.call.dropout = in.next() % 2 != 0;
      told(fulmen_register_backend(&backend.call));
      return;
    }
    case 1:
      told(fulmen_unregister_backend(in.next() % 8 == 0   ? nullptr
                                     : in.next() % 8 == 0 ? "cpu"
                                                          : "fuzzed"));
      return;
    case 2:
      told(fulmen_set_log_callback(
          in.next() % 2 == 0 ? nullptr
                             : +[](void*, const char* line) { require(*line != '\0', "a line"); },
          nullptr));
      return;
    case 3: {
      Roomy<fulmen_allocator> allocator{};
      allocator.call.struct_size =
          in.next() % 4 != 0 ? sizeof(fulmen_allocator) : in.next() * std::size_t{8};
      allocator.behind[0] = in.next() % 4 == 0 ? 1 : 0;
      allocator.call.allocate = in.next() % 8 == 0 ? nullptr : allocate;
      allocator.call.free = in.next() % 8 == 0 ? nullptr : give_back;
      told(fulmen_set_allocator(in.next() % 4 == 0 ? nullptr : &allocator.call));
      return;
    }
    case 4: {
      std::array<uint8_t, 200> pack{};
      constexpr std::string_view kBegin = "fulmen kernel 1\n";
      if (in.next() % 2 != 0) std::copy(kBegin.begin(), kBegin.end(), pack.begin());
      for (std::size_t at = kBegin.size(); at < pack.size() && in.more(); ++at)
        pack[at] = in.next();
      const std::size_t bytes = in.next() % (pack.size() + 1);
      require(told(fulmen_add_prebuilt_pack(in.next() % 16 == 0 ? nullptr : pack.data(), bytes)) !=
                  FULMEN_OK,
              "this is no pack");
      require(
          told(fulmen_add_prebuilt_path(in.next() % 2 == 0 ? nullptr : "/nowhere/\n")) != FULMEN_OK,
          "there is no such folder");
      fulmen_set_prebuilt_source(
          in.next() % 2 == 0 ? nullptr
                             : +[](void*, const char* arch, const char* kernel) {
                                 require(*arch != '\0' && (kernel == nullptr || *kernel != '\0'),
                                         "a chip and a kernel");
                                 return false;
                               },
          nullptr);
      return;
    }
    default: {
      Roomy<fulmen_kv_cache> cache{};
      const std::size_t size = in.next() * std::size_t{8};
      fulmen_kv_cache_init_sized(&cache.call, size);
      told(fulmen_append_kv_check(&cache.call));
    }
  }
}

}  // namespace

// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  Bytes in(data, size);
  for (int calls = 0; calls < 16 && in.more(); ++calls) {
    switch (in.next() % 4) {
      case 0:
        device_calls(in);
        break;
      case 1:
        state_calls(in);
        break;
      default:
        computing_calls(in);
    }
    require(taken == 0, "what the allocator gave came back");
  }
  // The next input must find the initial state.
  static_cast<void>(fulmen_unregister_backend("fuzzed"));
  static_cast<void>(fulmen_set_default_device(nullptr));
  static_cast<void>(fulmen_set_log_callback(nullptr, nullptr));
  static_cast<void>(fulmen_set_allocator(nullptr));
  return 0;
}
