// Backends and kernels: how Fulmen finds what can run a Problem, and how a user adds an
// implementation at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/kv_cache.h"
#include "fulmen/plan.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"

namespace fulmen {

struct DeviceInfo {
  std::string name;      // what plan() takes: "cpu", "cuda:0"
  std::string chip;      // "AMD EPYC 9654", "gfx1100"
  std::string features;  // instruction sets, memory, ...
  bool usable = false;
  std::string reason;  // why not, when not usable, and what to do about it
};

// "yes", or the reason why not.
struct Support {
  bool yes = true;
  std::string reason;
  static Support no(std::string why) { return {false, std::move(why)}; }
};

// What a kernel can be tuned by for one Problem, and what measured results are kept under.
struct KernelTuning {
  std::string kernel;
  std::string chip;           // "sm_90a", "AMD EPYC 9654"
  int compute_units = 0;      // CPU: threads
  std::string build;          // of the kernel's code: results of another one do not count
  std::string problem_class;  // what of the problem decides which configuration is fastest, lengths
                              // rounded up
  // Every legal one as options.tuning takes it, the default first.
  std::vector<std::string> configurations;
  // GPU, else empty: "NVIDIA H200", "driver of CUDA 13.0", "NVRTC 13.0 ...".
  std::string product{}, driver{}, compiler{};
};

// A kernel specialised for one Problem. Immutable; run() may be called from many threads at once.
class FULMEN_API Runner {
 public:
  virtual ~Runner() = default;
  virtual const KernelConfig& config() const noexcept = 0;
  virtual std::size_t workspace_bytes() const noexcept = 0;
  // Pointers are already checked, the workspace is at least workspace_bytes() and 64-byte aligned.
  virtual Status run(void* stream, const AttentionTensors& tensors, void* workspace) const = 0;
};

// One candidate. Stateless, lives as long as its backend.
class FULMEN_API Kernel {
 public:
  virtual ~Kernel() = default;
  // "<backend>.<family>.<variant>", unique in the process.
  virtual std::string_view name() const noexcept = 0;
  // What it computes. Problems of the other pass, and with dropout where dropout() is false, are
  // refused before supports() is asked.
  virtual Pass pass() const noexcept { return Pass::forward; }
  virtual bool dropout() const noexcept { return false; }
  // Whether it runs problems with score_mod or mask_mod, and those with a block mask. Refused where
  // not, before supports() is asked.
  virtual bool score_functions() const noexcept { return false; }
  virtual bool block_masks() const noexcept { return false; }
  // Whether it runs sequences of different lengths, and keys and values in pages. Refused before
  // supports() is asked where not.
  virtual bool variable_lengths() const noexcept { return false; }
  virtual bool paged() const noexcept { return false; }
  // Whether it reads k and v of a dtype that is not q's, and k_scale, v_scale and q_scale.
  virtual bool quantized_kv() const noexcept { return false; }
  // Whether it has products of this precision. Refused before supports() is asked where not.
  virtual bool takes(Precision precision) const noexcept { return precision == Precision::exact; }
  // Returns true if its results are the same bits from run to run. If not, it is refused unless
  // options.deterministic is false.
  virtual bool deterministic() const noexcept { return true; }
  // Returns true if out may be exactly q's memory: the same address, shape and strides. This is
  // safe where each row of out is written by the only reader of that row of q, and after the read.
  virtual bool out_over_q() const noexcept { return false; }
  // Returns whether the kernel can run this problem on this device, and if not, why. It is called
  // often and answers quickly.
  virtual Support supports(const Problem& problem, const std::string& device) const = 0;
  // How good it is for a problem it supports: the highest wins; ties go to the one registered
  // first. 0 or less: only when forced.
  virtual double rank(const Problem& problem) const = 0;
  // The memory layout it needs, in words for listings; strides are checked by supports().
  virtual std::string_view layout() const noexcept { return "any strides, contiguous last dim"; }
  // device: the one that supports() was asked for. May take time (a GPU's kernel is compiled at
  // first use).
  virtual Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& device,
                                                  const AttentionOptions& options) const = 0;
  // What options.tuning may say; looks at nothing else but what prepare() gets. Errors: the kernel
  // has no parameters.
  virtual Result<KernelTuning> tuning(const Problem& problem, const std::string& device,
                                      const AttentionOptions& options) const;
};

class FULMEN_API Backend {
 public:
  virtual ~Backend() = default;
  // "cpu"; a device's name is this, or this, ':' and a selector.
  virtual std::string_view name() const noexcept = 0;
  virtual std::vector<DeviceInfo> devices() const = 0;
  virtual const std::vector<const Kernel*>& kernels() const = 0;
  // Whether kernels take the caller's ordinary memory. Where not, tensors and workspace are memory
  // of the device: from allocate(), or the vendor's or a framework's own.
  virtual bool uses_host_memory() const noexcept { return true; }
  // Memory that the device's kernels can use, 64-byte aligned, or null. Host memory here. free()
  // waits for work that may use it.
  virtual void* allocate(const std::string& device, std::size_t bytes) const noexcept;
  virtual void free(const std::string& device, void* memory) const noexcept;
  // The same for work in one stream alone: free_in_stream() gives the memory back when the stream
  // has come to it, without waiting, where the device can do so. allocate() and free() here.
  virtual void* allocate_in_stream(const std::string& device, void* stream,
                                   std::size_t bytes) const noexcept;
  virtual void free_in_stream(const std::string& device, void* stream, void* memory) const noexcept;
  // Between any memory of the host and the device, after all work already given to the device;
  // complete on return.
  virtual Status copy(const std::string& device, void* to, const void* from,
                      std::size_t bytes) const;
  // append_kv() of fulmen/kv_cache.h on its device. Tensors are checked; their values are only
  // where the host's memory is used. Refuses here.
  virtual Status append_kv(const std::string& device, void* stream, const KvCacheProblem& problem,
                           const KvCacheTensors& tensors, const KvCacheOptions& options) const;
  // Whether the stream is being captured into a graph: then nothing may wait for it. False here.
  virtual bool is_capturing(const std::string& device, void* stream) const noexcept;
  // Returns when all work given to the stream (null: the device's default one) is done.
  virtual Status synchronize(const std::string& device, void* stream) const;
  // zero_unused_rows() of fulmen/unused_rows.h on its device: there are such results, and they have
  // addresses. Done on the host here, refused where the host's memory is not used.
  virtual Status zero_unused_rows(const std::string& device, void* stream, const Problem& problem,
                                  const AttentionTensors& tensors) const;
};

// Adds a backend. Errors: null; a backend of that name exists; a kernel's name is taken.
// Thread-safe.
FULMEN_API Status register_backend(std::shared_ptr<const Backend> backend);
// Takes it away again: no plan is made on it from now on, and its name is free. Plans that exist
// stay valid and keep it alive. A default device of it is forgotten. Errors: no such backend; a
// built-in one. Thread-safe.
FULMEN_API Status unregister_backend(const std::string& name);
// All backends in order of registration: built-in ones first.
FULMEN_API std::vector<std::shared_ptr<const Backend>> backends();
// All devices of all backends, the unusable ones with their reason.
FULMEN_API std::vector<DeviceInfo> devices();
// The name of the device used where none is given: set_default_device(), else $FULMEN_DEVICE, else
// "cpu".
FULMEN_API std::string default_device();
// Empty forgets what was set. Errors: no such device, or it cannot be used.
FULMEN_API Status set_default_device(const std::string& device);
// For every kernel of the device's backend: its name and whether it supports the problem. An empty
// device is default_device().
struct Candidate {
  std::string kernel;
  Support support;
  double rank = 0;
};
FULMEN_API Result<std::vector<Candidate>> candidates(const Problem& problem,
                                                     const std::string& device = {});

// Kernel::tuning() of the kernel that plan() would take.
FULMEN_API Result<KernelTuning> kernel_tuning(const Problem& problem,
                                              const std::string& device = {},
                                              const AttentionOptions& options = {});
// Where this user's own tuned results of a chip are kept, below kernel_cache_folder(); empty where
// there is no such folder. They are read once a process, by the first plan.
FULMEN_API std::string tuned_results_file(const std::string& chip);
// The results that come with the library, each text a chip's file in the format of
// tuned_results_file().
FULMEN_API std::vector<std::string> shipped_tuned_results();

}  // namespace fulmen
