/* The C ABI of Fulmen: what the C++ API computes and says, in C99; of compile.h (kernels ahead of
 * time, their cache) it has prebuilt kernels alone. The semantics are those of attention.h;
 * docs/contract.md has the formulas.
 *
 * Functions return a fulmen_status (0 is success); on failure fulmen_last_error() of the same
 * thread has the sentence. Nothing throws or aborts. What is printed is the log alone:
 * FLASH_ATTENTION_DEBUG's lines and troubles of the kernel cache, on stderr or to
 * fulmen_set_log_callback(). Strings are UTF-8. All functions may be called from any thread.
 * Threads of the library's own compute on CPUs, num_threads with the caller at most; between calls
 * they sleep.
 *
 * Structs begin with their size, so that they can grow at their end; docs/contract.md, "The C ABI",
 * has the rules. A struct's _init function sets the size and the defaults, which are not all 0; a
 * struct that the library fills needs its size alone, sizeof. What an older caller's struct lacks
 * has its default. What a newer caller's struct has beyond this library's must be 0 there, else the
 * call is refused; where the library fills the struct, it sets what it does not know to 0. */
#ifndef FULMEN_FULMEN_C_H
#define FULMEN_FULMEN_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fulmen/export.h"
#include "fulmen/head_dims.h"

/* C has its own naming and no `using`. NOLINTBEGIN(readability-identifier-naming,modernize-*) */

#ifdef __cplusplus
extern "C" {
#endif
/* What functions return; fulmen_last_error() has the sentence. */
typedef enum fulmen_status {
  FULMEN_OK = 0,               /* success */
  FULMEN_INVALID_ARGUMENT = 1, /* a shape, stride, dtype, option or name is malformed */
  FULMEN_UNSUPPORTED = 2,      /* the forced kernel, or every kernel, refuses the problem */
  FULMEN_UNAVAILABLE = 3,      /* the device is not there, or cannot be used */
  FULMEN_OUT_OF_MEMORY = 4,    /* an allocation failed */
  /* Verify found the result wrong, or a first use on an AMD GPU did and no other kernel is left. */
  FULMEN_VERIFICATION_FAILED = 5,
  /* A defect in the library, or in a backend or parallel_for of the user's. */
  FULMEN_INTERNAL = 6
} fulmen_status;
/* Of a tensor's elements. */
typedef enum fulmen_dtype {
  FULMEN_FP32 = 0,    /* IEEE binary32 */
  FULMEN_FP16 = 1,    /* IEEE binary16 */
  FULMEN_BF16 = 2,    /* bfloat16: the upper half of a binary32 */
  FULMEN_BOOLEAN = 3, /* a byte, 0 is false */
  FULMEN_INT32 = 4,   /* lengths, page tables and block masks */
  /* Formats of k and v alone; docs/guide/quantized_kv.md has their bits. */
  FULMEN_INT8 = 5,         /* a byte */
  FULMEN_FP8_E4M3 = 6,     /* OCP */
  FULMEN_FP8_E5M2 = 7,     /* OCP */
  FULMEN_FP8_E4M3FNUZ = 8, /* bias 8, no infinity, no -0 */
  FULMEN_FP8_E5M2FNUZ = 9, /* bias 16, the same */
  /* GGML's blocks of 32 numbers. Their strides are in bytes. */
  FULMEN_Q8_0 = 10, /* 34 bytes a block */
  FULMEN_Q4_0 = 11, /* 18 bytes a block */
  FULMEN_Q4_1 = 12, /* 20 bytes a block */
  FULMEN_Q5_0 = 13, /* 22 bytes a block */
  FULMEN_Q5_1 = 14, /* 24 bytes a block */
  /* Of tensors of score functions alone, which may be int8, too. */
  FULMEN_INT64 = 15,
  FULMEN_UINT8 = 16 /* a byte, 0 to 255 */
} fulmen_dtype;
/* Which keys a causal mask leaves to a query. */
typedef enum fulmen_causal {
  FULMEN_CAUSAL_NONE = 0,         /* all */
  FULMEN_CAUSAL_BOTTOM_RIGHT = 1, /* the last query is on the diagonal with the last key */
  FULMEN_CAUSAL_TOP_LEFT = 2      /* the first query is on the diagonal with the first key */
} fulmen_causal;

/* In which numbers the products are: docs/contract.md, "Products in 8 bits". */
typedef enum fulmen_precision {
  FULMEN_PRECISION_EXACT = 0, /* those of the tensors */
  FULMEN_PRECISION_INT8 = 1,  /* q k^T in int8 */
  FULMEN_PRECISION_FP8 = 2    /* both products in fp8_e4m3 */
} fulmen_precision;

/* A view: four logical dims, strides in elements (of block formats in bytes), the last dim
 * contiguous. q, k, v, out:
 * [batch, seqlen, head, head_dim]. All zero: absent. The functions below make the usual ones.
 * `data` is not const, since one type serves inputs and outputs; inputs are never written. */
typedef struct fulmen_tensor {
  /* The first element, aligned to its dtype; null where the tensor is absent or empty. */
  void* data;
  int32_t dtype;      /* fulmen_dtype */
  int64_t shape[4];   /* elements of each dim, from 0 */
  int64_t strides[4]; /* in elements; that of the last dim is 1 */
  /* 0: kept for what a later version may say of a tensor; another value is refused. */
  uint64_t reserved[2];
} fulmen_tensor;

/* How many elements, as strides count them, a row of dim numbers has: bytes in a block format. */
static inline int64_t fulmen_row_elements(int32_t dtype, int64_t dim) {
  static const int64_t bytes[] = {34, 18, 20, 22, 24};
  if (dtype < FULMEN_Q8_0 || dtype > FULMEN_Q5_1) return dim;
  return dim <= 0 ? dim : ((dim - 1) / 32 + 1) * bytes[dtype - FULMEN_Q8_0];
}
/* Row-major [shape0, shape1, shape2, shape3]. A dim of size 1 has stride 0, which broadcasts. */
static inline fulmen_tensor fulmen_tensor_row_major(const void* data, int32_t dtype, int64_t shape0,
                                                    int64_t shape1, int64_t shape2,
                                                    int64_t shape3) {
  const int64_t shape[4] = {shape0, shape1, shape2, shape3};
  int64_t stride = 1;
  int d;
  fulmen_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  /* Takes the const away without a cast that compilers warn of. */
  memcpy((void*)&tensor.data, (const void*)&data, sizeof data);
  tensor.dtype = dtype;
  for (d = 3; d >= 0; --d) {
    tensor.shape[d] = shape[d];
    tensor.strides[d] = shape[d] == 1 && d < 3 ? 0 : stride;
    /* Too large: refused by its use. */
    if (shape[d] > 1) {
      const int64_t size = d == 3 ? fulmen_row_elements(dtype, shape[d]) : shape[d];
      stride = stride > INT64_MAX / size ? INT64_MAX : stride * size;
    }
  }
  return tensor;
}
/* [n]: sinks and alibi_slopes (n heads), cu_seqlens (batch + 1), seqlens_k and leftpad_k
 * (batch). */
static inline fulmen_tensor fulmen_tensor_1d(const void* data, int32_t dtype, int64_t n) {
  return fulmen_tensor_row_major(data, dtype, 1, 1, 1, n);
}
/* Row-major [rows, columns]: block_table (batch, max_pages), rotary_cos and rotary_sin (positions,
 * rotary_dim / 2). */
static inline fulmen_tensor fulmen_tensor_2d(const void* data, int32_t dtype, int64_t rows,
                                             int64_t columns) {
  return fulmen_tensor_row_major(data, dtype, 1, 1, rows, columns);
}
/* q, k, v, out in the memory order [batch, seqlen, head, head_dim], which is also
 * [batch, seqlen, head * head_dim]. */
static inline fulmen_tensor fulmen_tensor_bshd(const void* data, int32_t dtype, int64_t batch,
                                               int64_t seqlen, int64_t heads, int64_t head_dim) {
  return fulmen_tensor_row_major(data, dtype, batch, seqlen, heads, head_dim);
}
/* The same dims, in the memory order [batch, head, seqlen, head_dim]. */
static inline fulmen_tensor fulmen_tensor_bhsd(const void* data, int32_t dtype, int64_t batch,
                                               int64_t seqlen, int64_t heads, int64_t head_dim) {
  fulmen_tensor tensor = fulmen_tensor_row_major(data, dtype, batch, heads, seqlen, head_dim);
  const int64_t head_stride = tensor.strides[1];
  tensor.shape[1] = seqlen;
  tensor.shape[2] = heads;
  tensor.strides[1] = tensor.strides[2];
  tensor.strides[2] = head_stride;
  return tensor;
}
/* Row-major bias, keep_mask or dbias [batch, head, seqlen_q, seqlen_k], where a dim given as 1 is
 * broadcast, and lse or dlse, which have seqlen_k 1. */
static inline fulmen_tensor fulmen_tensor_bhqk(const void* data, int32_t dtype, int64_t batch,
                                               int64_t heads, int64_t seqlen_q, int64_t seqlen_k) {
  return fulmen_tensor_row_major(data, dtype, batch, heads, seqlen_q, seqlen_k);
}

/* A tensor that score_mod or mask_mod reads: docs/guide/score_functions.md. */
typedef struct fulmen_function_tensor {
  size_t struct_size; /* sizeof(fulmen_function_tensor), the same in each of an array */
  const char* name;   /* what the text calls it: letters, digits and _, no digit first */
  /* 0 to 4: the first so many of shape and strides count, in both; any strides. */
  int32_t dims;
  fulmen_tensor tensor;   /* an input, of any fulmen_dtype */
  fulmen_tensor gradient; /* output of the backward pass, or zeros; fp32 or the tensor's dtype */
} fulmen_function_tensor;

/* The tensors of a call; see AttentionTensors in attention.h for shapes and dtypes. */
typedef struct fulmen_tensors {
  size_t struct_size; /* of the caller's header; the init function sets it */
  /* [batch, seqlen_q, num_heads, head_dim] of fp32, fp16 or bf16; packed [1, total_q, ...] */
  fulmen_tensor q;
  /* [batch, seqlen_k, num_kv_heads, head_dim] of q's dtype, int8, fp8 or a block format;
   * packed [1, total_k, ...]; or pages. */
  fulmen_tensor k;
  fulmen_tensor v;   /* as k, with a head_dim and a dtype of its own */
  fulmen_tensor out; /* output, of q's shape and dtype with v's head_dim */
  /* Optional inputs. */
  fulmen_tensor bias, keep_mask, alibi_slopes, sinks;
  fulmen_tensor lse; /* optional output */
  /* Backward alone: there out and lse are inputs, as the forward call gave them, and lse is
   * needed. */
  fulmen_tensor dout; /* input: the loss's gradient by out */
  fulmen_tensor dlse; /* optional input: its gradient by lse */
  /* Outputs: an absent one is not computed, one at least is needed. */
  fulmen_tensor dq, dk, dv, dbias, dsinks;
  /* Which random numbers dropout takes: the same pair forward and backward. */
  uint64_t dropout_seed, dropout_offset;
  /* Sequences of different lengths, and keys and values in pages; optional, int32. */
  /* [1, 1, 1, batch + 1] of packed q, out, lse and packed k, v. */
  fulmen_tensor cu_seqlens_q, cu_seqlens_k;
  /* [1, 1, 1, batch]: where the used rows of padded or paged k, v end. */
  fulmen_tensor seqlens_k;
  /* [1, 1, batch, max_pages]: k, v are [num_pages, page_size, head, head_dim] */
  fulmen_tensor block_table;
  /* [1, 1, 1, batch]: where the used rows of padded or paged k, v begin. */
  fulmen_tensor leftpad_k;
  /* Optional, fp32 or fp16: factors of k's and v's numbers, [1 or batch, 1, 1 or num_kv_heads, 1],
   * or with the dims of k and v but the last, for each token; that of k also with head_dim. */
  fulmen_tensor k_scale, v_scale;
  /* Optional, fp32 or fp16 [1 or batch, 1, 1 or num_kv_heads, 1]: of the queries. */
  fulmen_tensor q_scale;
  /* A block mask: optional, int32, [1 or batch, 1 or num_heads, 1, blocks of queries] and
   * [1 or batch, 1 or num_heads, blocks of queries, blocks of keys]. */
  fulmen_tensor kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices;
  /* What score_mod and mask_mod of the options read, up to 32; null: nothing. */
  const fulmen_function_tensor* function_tensors;
  /* How many they are. */
  int64_t num_function_tensors;
} fulmen_tensors;

/* Runs task(arg, index) once for every index in [0, count), in any order, on any threads; returns
 * when all are done. */
typedef void (*fulmen_parallel_for)(void* context, int64_t count,
                                    void (*task)(void* arg, int64_t index), void* arg);

/* What a call computes. Set it up with fulmen_options_init(). */
typedef struct fulmen_options {
  size_t struct_size;  /* of the caller's header; the init function sets it */
  float softmax_scale; /* NaN, the default, is 1 / sqrt(head_dim) */
  float softcap;       /* default 0, off */
  int32_t causal;      /* fulmen_causal, default none */
  /* Default -1, unlimited: the most keys on the left of a query's position. */
  int64_t window_left;
  int64_t window_right;             /* the same on the right */
  const char* kernel;               /* force a kernel by name; null or empty chooses */
  int32_t num_threads;              /* default 0: OMP_NUM_THREADS, else all processors */
  bool verify;                      /* default false: run the reference beside every call */
  fulmen_parallel_for parallel_for; /* default null: the library's threads */
  void* parallel_for_context;       /* given to each call of parallel_for */
  /* Default 0, off: the probability, below 1, that an element of the softmax is dropped. */
  float dropout;
  /* Default true; false also takes kernels that add gradients by atomics: other bits every run. */
  bool deterministic;
  /* Default -1, as the shapes say: the longest sequence; needed where q is packed. */
  int64_t max_seqlen_q;
  int64_t max_seqlen_k; /* the same of k */
  /* Default false; true checks lengths and page tables in a device's own memory, and waits for
   * that. */
  bool validate;
  /* Default false; true makes a plan for a range of sizes: the tensors' batch, or seqlen_k, is the
   * most that its runs take. */
  bool vary_batch;
  bool vary_seqlen_k; /* the same of the keys */
  /* Default false; true makes a plan whose runs do not check addresses: see AttentionOptions. */
  bool trust_pointers;
  /* The kernel's parameters, "block_m=64,waves=4": see AttentionOptions; null or empty: as it
   * chooses. */
  const char* tuning;
  /* Default true: a GPU's kernel is checked by a small problem at its first use: see
   * AttentionOptions. */
  bool check_first_use;
  /* Functions of scores and masks as text: docs/guide/score_functions.md. Null or empty: none. */
  const char* score_mod;
  /* The same, of a bool: false hides the pair. */
  const char* mask_mod;
  /* A block mask's queries in a block: a multiple of 16 up to 256, default 128. */
  int64_t mask_block_q;
  /* The same of keys. */
  int64_t mask_block_k;
  /* fulmen_precision, default exact: products in 8 bits, in the forward pass alone. */
  int32_t precision;
} fulmen_options;

/* The plan's own window, in fulmen_run_options. */
#define FULMEN_AS_PLANNED INT64_MIN

/* What one run changes of its plan's options. Set it up with fulmen_run_options_init(): everything
 * as planned. */
typedef struct fulmen_run_options {
  size_t struct_size;   /* of the caller's header; the init function sets it */
  float softmax_scale;  /* NaN: the plan's */
  float softcap;        /* NaN: the plan's; 0 is off */
  int64_t window_left;  /* FULMEN_AS_PLANNED: the plan's; -1 is unlimited */
  int64_t window_right; /* the same; a causal plan's is 0, and another value takes its mask away */
} fulmen_run_options;

/* Defaults; null is ignored. The size is that of the struct in the program's headers: a newer
 * library writes no more. */
FULMEN_API void fulmen_tensors_init_sized(fulmen_tensors* tensors, size_t struct_size);
/* Defaults; see fulmen_tensors_init_sized. */
FULMEN_API void fulmen_options_init_sized(fulmen_options* options, size_t struct_size);
static inline void fulmen_tensors_init(fulmen_tensors* tensors) {
  fulmen_tensors_init_sized(tensors, sizeof *tensors);
}
static inline void fulmen_options_init(fulmen_options* options) {
  fulmen_options_init_sized(options, sizeof *options);
}
/* Everything as planned; see fulmen_tensors_init_sized. */
FULMEN_API void fulmen_run_options_init_sized(fulmen_run_options* options, size_t struct_size);
static inline void fulmen_run_options_init(fulmen_run_options* options) {
  fulmen_run_options_init_sized(options, sizeof *options);
}

/* "0.1.0" of the library that is loaded. */
FULMEN_API const char* fulmen_version(void);
/* The message of this thread's last call that returns a status: "" after a success. Valid until
 * this thread's next call. */
FULMEN_API const char* fulmen_last_error(void);
/* "invalid argument" for 1, and so on. */
FULMEN_API const char* fulmen_status_name(int status);

/* One call: checks, plans, runs and waits. options may be null: defaults. device may be null:
 * fulmen_default_device(). On an error nothing is written, with the two exceptions of
 * docs/contract.md, "Errors": a result that verify found wrong, and a kernel or parallel_for of the
 * user's that fails while it runs. */
FULMEN_API int fulmen_attention(const fulmen_tensors* tensors, const fulmen_options* options,
                                const char* device);
/* The same for the gradients: reads q, k, v, the optional inputs, out, lse, dout and dlse, writes
 * dq, dk, dv, dbias and dsinks. */
FULMEN_API int fulmen_attention_backward(const fulmen_tensors* tensors,
                                         const fulmen_options* options, const char* device);
/* The same in a stream of a GPU, without waiting for the result: the tensors must live until the
 * stream has come to it. A null stream is the device's default one, and the call waits, as the two
 * above do. Ignored on the CPU. */
FULMEN_API int fulmen_attention_in_stream(const fulmen_tensors* tensors,
                                          const fulmen_options* options, const char* device,
                                          void* stream);
/* fulmen_attention_backward in a stream; see fulmen_attention_in_stream. */
FULMEN_API int fulmen_attention_backward_in_stream(const fulmen_tensors* tensors,
                                                   const fulmen_options* options,
                                                   const char* device, void* stream);

/* A plan: the decision which kernel runs a problem, made once, run any number of times from any
 * thread. The tensors' shapes, dtypes and strides are read, their pointers are not. */
struct fulmen_plan;
typedef struct fulmen_plan fulmen_plan;
/* *plan is the caller's, who ends it by fulmen_plan_destroy; null after an error. device may be
 * null: fulmen_default_device(). */
FULMEN_API int fulmen_plan_create(const fulmen_tensors* tensors, const fulmen_options* options,
                                  const char* device, fulmen_plan** plan);
/* A plan of the backward pass. All that follows takes plans of both. */
FULMEN_API int fulmen_plan_create_backward(const fulmen_tensors* tensors,
                                           const fulmen_options* options, const char* device,
                                           fulmen_plan** plan);
/* Ends a plan that no call uses. Null does nothing. */
FULMEN_API void fulmen_plan_destroy(fulmen_plan* plan);
/* Bytes of scratch a run needs, aligned to 64; of a plan for a range, the most of its sizes. */
FULMEN_API size_t fulmen_plan_workspace_bytes(const fulmen_plan* plan);
/* Computes into out and lse, or into the gradients. A tensor's dtype, shape and strides must be the
 * plan's; of a tensor that is not empty they may all be 0, and only its data is then read. Others
 * are refused with FULMEN_INVALID_ARGUMENT, and nothing is written. Strides of dims of one element
 * or none, and tensors of the other pass, are ignored. The dropout's seed and offset are the call's
 * own. stream: a vendor's stream, null for the device's default one, ignored on the CPU; a GPU may
 * still be computing on return: fulmen_device_synchronize() waits. workspace may be null: it is
 * then allocated for the call. A plan for a range takes the sizes that vary from the tensors, and
 * any strides. */
FULMEN_API int fulmen_plan_run(const fulmen_plan* plan, void* stream, const fulmen_tensors* tensors,
                               void* workspace, size_t workspace_bytes);
/* The same with options of this run's own. options may be null: as planned. A value that the plan
 * did not meet lately costs as much as planning; see RunOptions in plan.h. */
FULMEN_API int fulmen_plan_run_with(const fulmen_plan* plan, void* stream,
                                    const fulmen_tensors* tensors,
                                    const fulmen_run_options* options, void* workspace,
                                    size_t workspace_bytes);
/* A plan of its own for just these tensors' sizes and these options (null: as planned): to look at,
 * or to have its kernels loaded before a graph is captured. No memory of the tensors is read. */
FULMEN_API int fulmen_plan_at(const fulmen_plan* plan, const fulmen_tensors* tensors,
                              const fulmen_run_options* options, fulmen_plan** exact);
/* Which kernel runs, and why each other does not. Lives as long as the plan. */
FULMEN_API const char* fulmen_plan_explain(const fulmen_plan* plan);
/* The name of the device it runs on. Lives as long as the plan. */
FULMEN_API const char* fulmen_plan_device(const fulmen_plan* plan);

/* A plan's kernel and its numbers; those that the kernel does not use are 0. */
typedef struct fulmen_kernel_config {
  size_t struct_size;  /* sizeof, set by the caller */
  const char* kernel;  /* lives as long as the plan */
  int32_t block_m;     /* query rows of a tile */
  int32_t block_n;     /* key rows of a tile */
  int32_t num_splits;  /* parts that a query's keys are divided into, or only the last queries' */
  int32_t num_threads; /* the most CPU threads of a run */
} fulmen_kernel_config;
/* Which kernel a plan runs, and its numbers. */
FULMEN_API int fulmen_plan_config(const fulmen_plan* plan, fulmen_kernel_config* config);

/* Devices, the unusable ones with their reason. Strings live until the visitor returns. */
typedef struct fulmen_device_info {
  size_t struct_size;   /* of the library's header */
  const char* name;     /* what other calls take as device */
  const char* chip;     /* the chip's name */
  const char* features; /* instruction sets, memory and the like, in words */
  bool usable;          /* whether calls may name it */
  const char* reason;   /* why not, else "" */
  /* Kernels take the caller's ordinary memory; else tensors and workspace are memory of the
   * device. */
  bool host_memory;
} fulmen_device_info;
/* Calls visit once for each device. */
FULMEN_API int fulmen_visit_devices(void (*visit)(void* context, const fulmen_device_info* device),
                                    void* context);
/* The device used where none is given: fulmen_set_default_device(), else $FULMEN_DEVICE, else
 * "cpu". Valid until this thread's next call. */
FULMEN_API const char* fulmen_default_device(void);
/* Null or "" forgets what was set. */
FULMEN_API int fulmen_set_default_device(const char* device);

/* Memory of a device, for tensors and workspace. A vendor's or a framework's own allocations of
 * that device do as well. device may be null: fulmen_default_device(). */
/* At least 64-byte aligned, contents undefined; host memory where the device uses it. *memory is
 * null after an error. 0 bytes have an address, too. */
FULMEN_API int fulmen_device_allocate(const char* device, size_t bytes, void** memory);
/* Waits for work that may use it. Null does nothing. device: the one that it was allocated on. */
FULMEN_API void fulmen_device_free(const char* device, void* memory);
/* Between any memory of the host and the device, after all work already given to the device;
 * complete on return. */
FULMEN_API int fulmen_device_copy(const char* device, void* to, const void* from, size_t bytes);
/* Returns when all work given to the stream is done. stream: the vendor's; null is the device's
 * default one. */
FULMEN_API int fulmen_device_synchronize(const char* device, void* stream);

/* Prebuilt kernels of the program's own, for machines without a compiler; see add_prebuilt_kernels
 * in compile.h. path: a folder that `fulmen compile --out` wrote, or a file that `--pack` wrote. */
FULMEN_API int fulmen_add_prebuilt_path(const char* path);
/* The same of such a file's bytes in memory, which are copied. */
FULMEN_API int fulmen_add_prebuilt_pack(const void* pack, size_t bytes);
/* Where prebuilt kernels come from that are read only when one is wanted: source(context, arch,
 * kernel) may add some by the functions above and says whether it did; where kernel is null,
 * whether there are any for the chip. See set_prebuilt_source in compile.h. Null, the default, is
 * none. */
FULMEN_API void fulmen_set_prebuilt_source(bool (*source)(void* context, const char* arch,
                                                          const char* kernel),
                                           void* context);

/* Every kernel of every backend, with the memory layout it needs, in words. Strings live until the
 * visitor returns. */
FULMEN_API int fulmen_visit_kernels(void (*visit)(void* context, const char* backend,
                                                  const char* kernel, const char* layout),
                                    void* context);

/* What a call is: equal problems have equal hashes and texts. */
typedef struct fulmen_problem_info {
  size_t struct_size; /* sizeof, set by the caller */
  /* A hash of shapes, strides, dtypes and the options that say what is computed; not of device,
   * kernel, tuning, threads. */
  uint64_t hash;
  double flops; /* useful ones: attended keys only, a multiply-add is 2 */
  double bytes; /* inputs read once, outputs written once */
  /* "bf16 b=64 sq=64 sk=64 h=24/24 d=32 scale=0.1768"; valid until this thread's next call. */
  const char* text;
} fulmen_problem_info;
/* What a forward call is. */
FULMEN_API int fulmen_describe(const fulmen_tensors* tensors, const fulmen_options* options,
                               fulmen_problem_info* info);
/* What a backward call is. */
FULMEN_API int fulmen_describe_backward(const fulmen_tensors* tensors,
                                        const fulmen_options* options, fulmen_problem_info* info);

/* Every kernel of the device's backend, whether it supports the problem (else the reason), and its
 * rank. */
FULMEN_API int fulmen_visit_candidates(const fulmen_tensors* tensors, const fulmen_options* options,
                                       const char* device,
                                       void (*visit)(void* context, const char* kernel,
                                                     bool supported, const char* reason,
                                                     double rank),
                                       void* context);
/* The same of a backward call. */
FULMEN_API int fulmen_visit_candidates_backward(const fulmen_tensors* tensors,
                                                const fulmen_options* options, const char* device,
                                                void (*visit)(void* context, const char* kernel,
                                                              bool supported, const char* reason,
                                                              double rank),
                                                void* context);

/* Exact attention in double, row-major. out: of tensors->out's shape; lse:
 * [batch, num_heads, seqlen_q], packed [num_heads, total_q], or null. The data pointers of
 * tensors->out and lse are not touched. */
FULMEN_API int fulmen_reference(const fulmen_tensors* tensors, const fulmen_options* options,
                                double* out, double* lse);
/* Exact gradients in double, row-major, each null where it is not wanted: dq, dk and dv with the
 * shapes of q, k and v, dbias with that of tensors->dbias (the sum over its dims of size 1), dsinks
 * [num_heads]. A gradient is to be in tensors, too: that says its shape. The data pointers of out,
 * lse and the gradients in tensors are not touched: the forward pass is computed again. */
FULMEN_API int fulmen_reference_backward(const fulmen_tensors* tensors,
                                         const fulmen_options* options, double* dq, double* dk,
                                         double* dv, double* dbias, double* dsinks);
/* Which elements of the softmax dropout keeps (1) and drops (0):
 * [batch, num_heads, seqlen_q, seqlen_k] bytes, row-major, from options->dropout and the seed and
 * offset of tensors. Of the tensors it reads the shapes of a forward call, no data. */
FULMEN_API int fulmen_dropout_mask(const fulmen_tensors* tensors, const fulmen_options* options,
                                   uint8_t* keep);

/* How far a result is from the reference. */
typedef struct fulmen_verify_report {
  size_t struct_size;    /* sizeof, set by the caller */
  bool ok;               /* whether every tensor is inside of its bound */
  double worst_error;    /* max |ours - reference|, of out or of one gradient */
  double baseline_error; /* that of standard attention in the same precision */
  double bound;          /* what the rule of docs/contract.md allows */
  double lse_error;      /* max |lse - reference| / max(1, |reference|) */
  /* "out", or the gradient nearest to its bound or over it; valid until this thread's next call. */
  const char* tensor;
  int64_t elements;  /* that were compared: of out, or of every gradient; not of lse */
  double mean_error; /* the mean |ours - reference| of these */
} fulmen_verify_report;
/* Compares out (and lse) with the reference. Returns FULMEN_VERIFICATION_FAILED, the report filled,
 * where the rule is broken. */
FULMEN_API int fulmen_verify(const fulmen_tensors* tensors, const fulmen_options* options,
                             fulmen_verify_report* report);
/* The same for every gradient in tensors. */
FULMEN_API int fulmen_verify_backward(const fulmen_tensors* tensors, const fulmen_options* options,
                                      fulmen_verify_report* report);
/* The same, with each gradient's figures, dq first, where the report has the worst one's; `tensor`
 * is valid during its visit. */
FULMEN_API int fulmen_visit_gradient_errors(const fulmen_tensors* tensors,
                                            const fulmen_options* options,
                                            void (*visit)(void* context, const char* tensor,
                                                          double worst_error, double baseline_error,
                                                          double bound),
                                            void* context);
/* Whether the values of cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table and leftpad_k, in host
 * memory, obey the contract (docs/contract.md); reads no other tensor's data. Plans on devices that
 * use the host's memory ask it themselves. */
FULMEN_API int fulmen_check_sequences(const fulmen_tensors* tensors, const fulmen_options* options);
/* The same of a backward call. */
FULMEN_API int fulmen_check_sequences_backward(const fulmen_tensors* tensors,
                                               const fulmen_options* options);
/* Sets rows of packed results that belong to no sequence to 0, which the calls above leave as they
 * are: before cu_seqlens[0] and from cu_seqlens[batch] on, of out and lse as far as they are there;
 * see fulmen/unused_rows.h. Before or after the call itself. */
FULMEN_API int fulmen_zero_unused_rows(const fulmen_tensors* tensors, const fulmen_options* options,
                                       const char* device, void* stream);
/* The same of a backward call: of dq, dk and dv. */
FULMEN_API int fulmen_zero_unused_rows_backward(const fulmen_tensors* tensors,
                                                const fulmen_options* options, const char* device,
                                                void* stream);

/* Appending to a KV cache; see fulmen/kv_cache.h for shapes, dtypes and errors. */
typedef struct fulmen_kv_cache {
  size_t struct_size;                   /* of the caller's header; the init function sets it */
  fulmen_tensor k_cache, v_cache;       /* written: [batch, rows, head, head_dim], or pages */
  fulmen_tensor seqlens_k;              /* int32 [1, 1, 1, batch]: rows that are used before */
  fulmen_tensor block_table;            /* optional int32 [1, 1, batch, max_pages] */
  fulmen_tensor k_new, v_new;           /* [batch, seqlen_new, head, head_dim]; both or neither */
  fulmen_tensor rotary_cos, rotary_sin; /* [1, 1, positions, rotary_dim / 2]; both or neither */
  /* Only with a rotary embedding: both or neither; q_out may be q. */
  fulmen_tensor q, q_out;
  fulmen_tensor seqlens_k_out; /* optional output: seqlens_k + seqlen_new */
  /* Default true: pairs are neighbours; else the halves of rotary_dim. */
  bool rotary_interleaved;
  /* Default true: query i is at position seqlens_k + i; else all at seqlens_k. */
  bool queries_advance;
  int32_t num_threads;              /* default 0: OMP_NUM_THREADS, else all processors */
  fulmen_parallel_for parallel_for; /* default null: the library's threads */
  void* parallel_for_context;       /* given to each call of parallel_for */
  /* Default false; true checks seqlens_k and block_table in a device's own memory, and waits for
   * that. */
  bool validate;
  /* Optional, of a cache in int8 or fp8: written where a token has its own, else read. */
  fulmen_tensor k_scale, v_scale;
} fulmen_kv_cache;
/* Defaults; see fulmen_options_init. */
FULMEN_API void fulmen_kv_cache_init_sized(fulmen_kv_cache* call, size_t struct_size);
static inline void fulmen_kv_cache_init(fulmen_kv_cache* call) {
  fulmen_kv_cache_init_sized(call, sizeof *call);
}
/* device may be null: fulmen_default_device(). A GPU may still be at work on return. On an error
 * nothing is written, unless a parallel_for of the caller's fails while it runs. */
FULMEN_API int fulmen_append_kv(const fulmen_kv_cache* call, const char* device, void* stream);
/* What fulmen_append_kv checks before it looks at pointers: shapes, strides, dtypes. */
FULMEN_API int fulmen_append_kv_check(const fulmen_kv_cache* call);
/* Numbers of fp32, fp16 or bf16 to int8, fp8 or a block format, in host memory; see
 * fulmen/quantize.h for shapes and rounding. scale may be null; given_scales: it is read, else it
 * is computed and written. */
FULMEN_API int fulmen_quantize_kv(const fulmen_tensor* numbers, const fulmen_tensor* quantized,
                                  const fulmen_tensor* scale, bool given_scales);
/* The way back, rounded to the dtype of numbers, which is written. scale may be null. */
FULMEN_API int fulmen_dequantize_kv(const fulmen_tensor* quantized, const fulmen_tensor* scale,
                                    const fulmen_tensor* numbers);

/* What the kernels of a user's backend know beside dense tensors; see fulmen_backend. */
typedef enum fulmen_feature {
  FULMEN_FEATURE_VARIABLE_LENGTHS = 1, /* cu_seqlens_q, cu_seqlens_k, seqlens_k, leftpad_k */
  FULMEN_FEATURE_PAGED = 2             /* block_table; needs the other one, too */
} fulmen_feature;

/* A backend of the user's own, until fulmen_unregister_backend(). It has one device, called by the
 * backend's name, one kernel for the forward pass, and one for the gradients if it likes. */
typedef struct fulmen_backend {
  size_t struct_size;      /* sizeof, set by the caller */
  const char* name;        /* without ':'; copied */
  const char* kernel_name; /* copied */
  /* The highest of those that support a problem runs; 0 or less: only when forced by name. */
  double rank;
  void* context; /* given to each of its functions */
  /* May the kernel run this? Else write a reason, NUL-terminated, into reason[reason_size]. May be
   * null: it runs everything. */
  bool (*supports)(void* context, const fulmen_tensors* shapes, const fulmen_options* options,
                   char* reason, size_t reason_size);
  /* Computes; 0 is success, else a fulmen_status. The tensors' pointers are checked. The options
   * are the plan's, resolved: the scale is set, causal and windows say the same band. May be called
   * from many threads at once. */
  int (*run)(void* context, void* stream, const fulmen_tensors* tensors,
             const fulmen_options* options);
  /* Null, the default: no gradients. Else the second kernel's name, copied; supports() is asked for
   * it, too, with dout present. */
  const char* backward_kernel_name;
  /* As run, for the gradients; null with backward_kernel_name. */
  int (*run_backward)(void* context, void* stream, const fulmen_tensors* tensors,
                      const fulmen_options* options);
  /* Its kernels know dropout; else such problems are refused before supports() is asked. */
  bool dropout;
  /* Its gradients may differ in bits from run to run: refused unless options.deterministic is
   * false. */
  bool atomics;
  /* What else its kernels know, fulmen_feature values added up; other problems are refused before
   * supports() is asked. */
  uint64_t features;
} fulmen_backend;
/* Adds a backend: its name becomes a device. A name that is taken is refused. */
FULMEN_API int fulmen_register_backend(const fulmen_backend* backend);
/* Takes it away again: no plan is made on it from now on, and its name is free. Plans that exist
 * stay valid, so its functions and context must live as long as they do. Built-in backends are
 * refused. */
FULMEN_API int fulmen_unregister_backend(const char* name);

/* Where the log goes from now on: the lines of FLASH_ATTENTION_DEBUG, troubles of the kernel cache.
 * Null, the default, is stderr. line has no newline at its end. Called from any thread; one of the
 * callback before may still be under way when this returns. */
FULMEN_API int fulmen_set_log_callback(void (*callback)(void* context, const char* line),
                                       void* context);

/* Host memory for workspaces that a run allocates because the caller gave none. Called from any
 * thread. What an allocator gave is freed by the same one. */
typedef struct fulmen_allocator {
  size_t struct_size; /* sizeof, set by the caller */
  /* At least bytes, which are not 0, at a multiple of alignment (64), or null. */
  void* (*allocate)(void* context, size_t bytes, size_t alignment);
  /* Takes back what allocate gave for as many bytes. */
  void (*free)(void* context, void* memory, size_t bytes);
  void* context; /* given to both */
} fulmen_allocator;
/* The allocator from now on; null, or both functions null: the library's own, the default. */
FULMEN_API int fulmen_set_allocator(const fulmen_allocator* allocator);

/* Compatibility: the C entry that users of Rust attention kernels know. */
typedef struct FlashAttnParams {
  size_t batch_size;   /* sequences */
  size_t seq_len;      /* queries, and keys, of each */
  size_t num_heads;    /* of q, k, v and out */
  size_t head_dim;     /* elements of a head, 1 to 512 */
  bool is_causal;      /* top-left, which is the same as bottom-right here */
  float softmax_scale; /* 0 is 1 / sqrt(head_dim) */
} FlashAttnParams;
/* fp16, all of q, k, v, out [batch_size, seq_len, num_heads, head_dim], contiguous. Returns a
 * fulmen_status. */
FULMEN_API int flash_attn_forward(const void* q, const void* k, const void* v, void* out,
                                  const FlashAttnParams* params);
/* The gradients of flash_attn_forward, all tensors shaped like its own; a null dq, dk or dv is not
 * computed. out is its result. It has not kept the log-sum-exp that gradients need: this call
 * computes it again, by a forward pass into memory of its own. Where that counts,
 * fulmen_attention_backward takes the one that fulmen_attention gave. */
FULMEN_API int flash_attn_backward(const void* dout, const void* q, const void* k, const void* v,
                                   const void* out, void* dq, void* dk, void* dv,
                                   const FlashAttnParams* params);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif
