// The arguments of one call, from Python objects to the structs of the C ABI.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <vector>

#include "arguments/array.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::python {

// The tensors' order in the tuples that Python hands over. A shorter tuple, or None, leaves tensors
// out.
enum Place : int {
  kQ,
  kK,
  kV,
  kOut,
  kBias,
  kKeepMask,
  kAlibiSlopes,
  kSinks,
  kLse,
  kDout,
  kDlse,
  kDq,
  kDk,
  kDv,
  kDbias,
  kDsinks,
  kCuSeqlensQ,
  kCuSeqlensK,
  kSeqlensK,
  kLeftpadK,
  kBlockTable,
  kKScale,
  kVScale,
  kQScale,
  kPlaces
};

// A tensor's own dims.
enum class Form {
  queries,    // [batch, seqlen_q, heads, dim], packed [total_q, heads, dim]
  keys,       // [batch, seqlen_k, kv_heads, dim], packed [total_k, kv_heads, dim]
  rows,       // [batch, heads, seqlen_q], packed [heads, total_q]
  scores,     // what broadcasts to [batch, heads, seqlen_q, seqlen_k]
  heads,      // [heads]
  slopes,     // [heads] or [batch, heads]
  scales,     // [1], [kv_heads], [batch, kv_heads], or the dims of keys, each of which may be 1
  bounds,     // [batch + 1]
  sequences,  // [batch]
  pages,      // [batch, max_pages]
};
constexpr bool has_lengths(Form form) {
  return form == Form::bounds || form == Form::sequences || form == Form::pages;
}
// Few floats, a head or a sequence and a head.
constexpr bool of_heads(Form form) {
  return form == Form::heads || form == Form::slopes || form == Form::scales;
}
// Few numbers, which people also give as a list.
constexpr bool takes_lists(Form form) { return of_heads(form) || has_lengths(form); }

// The role of a tensor in the passes.
enum class Use {
  input,     // the forward pass reads it, or the backward pass alone
  result,    // the forward pass writes it, the backward pass reads it
  gradient,  // the backward pass writes it
};

// By place. A tensor that the C ABI has, and this table not, does not compile.
struct PlaceRow {
  const char* name;
  fulmen_tensor fulmen_tensors::* member;
  Form form;
  Use use;
};
extern const PlaceRow kTensors[kPlaces];
// Whether a pass writes the tensor.
bool is_written(Place place, bool backward);

// The other arguments' order, in the tuples and behind the tensors in Arguments.
enum Scalar : int {
  kScale,
  kSoftcap,
  kCausal,
  kWindowLeft,
  kWindowRight,
  kDropout,
  kSeed,
  kOffset,
  kDeterministic,
  kKernel,
  kTuning,
  kNumThreads,
  kVerify,
  kMaxSeqlenQ,
  kMaxSeqlenK,
  kValidate,
  kScalars
};

// What Python gave, by place; null where a tensor is absent or None, and where a scalar has its
// default. The objects are the caller's.
struct Arguments {
  nb::handle tensors[kPlaces];
  nb::handle scalars[kScalars];
  nb::handle device;
  bool bhsd = false;
  bool same_heads = false;  // whether q and k must have as many, which the tuples do not say

  Arguments() = default;
  // Reads tuples, the second of which ends before max_seqlen_q, or after validate.
  Arguments(nb::handle tensor_tuple, nb::handle scalar_tuple, nb::handle device, bool bhsd);
  // As the tuples of a forward pass; those of lengths only where one is given.
  nb::object tensor_tuple() const;
  nb::object scalar_tuple() const;

 private:
  bool have_lengths() const;
};

// Reads an option as its type; throws TypeError, or ArgumentError outside of its range.
bool flag(const char* name, nb::handle value);
double number(const char* name, nb::handle value);
int64_t integer(const char* name, nb::handle value, int64_t low, int64_t high);
const char* text(const char* name, nb::handle value);  // as long as value lives
int32_t thread_count(nb::handle num_threads);

// Throws ArgumentError: name has that shape, what is accepted.
[[noreturn]] void wrong_ndim(const char* name, const View& array, const char* accepted);

// The layout of a call's arrays.
struct Layout {
  bool bhsd = false;      // dims 1 and 2 of q, k, v and what has their shape are exchanged
  bool packed_q = false;  // q and its kin are [total_q, head, head_dim], lse is [head, total_q]
  bool packed_k = false;  // k and v are [total_k, head, head_dim]
};

// The view in the four dims that the C ABI wants for its place. Throws ArgumentError where it has
// others.
fulmen_tensor placed(Place place, const View& view, const Layout& layout);

struct Call {
  // writes: into the outputs that are given. Throws TypeError and ArgumentError, which name the
  // argument.
  explicit Call(const Arguments& arguments, bool writes = true);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool has(Place place) const { return objects[place].is_valid(); }
  // A new array for an absent tensor, like that of another place, of that shape
  // ([batch, seqlen, head, dim] for those with q's dims that are not packed).
  nb::object make(Place place, Place like, fulmen_dtype dtype, int ndim, const int64_t* shape);
  // Says the shape of an absent tensor, for calls that read no pointers.
  void describe(Place place, fulmen_dtype dtype, const int64_t (&shape)[4]);
  // A line for each array that is copied before it is read, each with its reason.
  std::string copies() const;
  const char* device_name() const { return device.empty() ? nullptr : device.c_str(); }
  fulmen_tensor& tensor(Place place);

  fulmen_tensors tensors;
  fulmen_options options;
  nb::handle objects[kPlaces];
  Array arrays[kPlaces];
  std::string kernel, tuning, device;
  Layout layout;

 private:
  void set(Place place, nb::handle object, bool is_output);
  // Whether all arrays are torch's, which answers for the device of their memory, and none is
  // written: results are then made for the call, apart from each other and from the inputs. A GPU's
  // driver need not be asked about each address.
  bool is_torch_alone(bool backward) const;
};

// Whether there is no sequence, or none with a query.
bool is_without_queries(const fulmen_tensors& tensors);

// Reads all arguments but the tensors. Throws TypeError and ArgumentError, which name the argument.
void read_options(const Arguments& arguments, Call& call);

// Throws the Python exception of a status that is not FULMEN_OK, with the message of this thread's
// last call. Shapes and strides in it are those of the call's arrays, where the C ABI has four
// dims.
void check(int status, const Call& call);
void check(int status);
// A message of the C ABI with those of the four dims that an array has, wherever it has four, or
// only the first time.
std::string in_dims(std::string message, const std::vector<int>& dims, bool all);
// Whether it begins with that argument.
bool is_about(std::string_view message, std::string_view name);
[[noreturn]] void raise(int status, const char* message);

}  // namespace fulmen::python
