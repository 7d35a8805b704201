// The arguments of one call, from Python objects to the structs of the C ABI.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "array.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::python {

// The tensors' order in the tuples that Python hands over. A shorter tuple, or None, leaves tensors out.
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
  kPlaces
};
extern const char* const kPlaceNames[kPlaces];
extern fulmen_tensor fulmen_tensors::* const kMembers[kPlaces];

// Throws ValueError: name has that shape, what is accepted.
[[noreturn]] void wrong_ndim(const char* name, const View& array, const char* accepted);

// How a call's arrays lie.
struct Layout {
  bool bhsd = false;      // dims 1 and 2 of q, k, v and what has their shape are exchanged
  bool packed_q = false;  // q and its kin are [total_q, head, head_dim], lse is [head, total_q]
  bool packed_k = false;  // k and v are [total_k, head, head_dim]
};

// The view in the four dims that the C ABI wants for its place. Throws ValueError where it has others.
fulmen_tensor placed(Place place, const View& view, const Layout& layout);

struct Call {
  // options: (softmax_scale, softcap, causal, window_left, window_right, dropout, dropout_seed, dropout_offset, deterministic,
  // kernel, num_threads, verify), and max_seqlen_q, max_seqlen_k where they are said. device: a name, or None for where q is.
  // writes: into the outputs that are given. Throws TypeError and ValueError, which name the argument.
  Call(nb::handle tensors, nb::handle options, nb::handle device, bool bhsd, bool writes = true);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool has(Place place) const { return objects[place].is_valid(); }
  // A new array for an absent tensor, like that of another place, of that shape ([batch, seqlen, head, dim] for those with q's
  // dims that are not packed).
  nb::object make(Place place, Place like, fulmen_dtype dtype, int ndim, const int64_t* shape);
  // Says the shape of an absent tensor, for calls that read no pointers.
  void describe(Place place, fulmen_dtype dtype, const int64_t (&shape)[4]);
  const char* device_name() const { return device.empty() ? nullptr : device.c_str(); }
  fulmen_tensor& tensor(Place place);

  fulmen_tensors tensors;
  fulmen_options options;
  nb::handle objects[kPlaces];
  Array arrays[kPlaces];
  std::string kernel, device;
  Layout layout;

 private:
  void set(Place place, nb::handle object);
};

// Throws the Python exception of a status that is not FULMEN_OK, with the message of this thread's last call.
void check(int status);

}  // namespace fulmen::python
