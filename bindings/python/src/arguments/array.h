// An argument that is an array of some framework, seen as memory: NumPy, PyTorch, or anything with
// DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <string>

#include "arguments/argument_error.h"
#include "arguments/dlpack.h"
#include "fulmen/fulmen_c.h"

namespace fulmen::python {

namespace nb = nanobind;

// str(object).
std::string text_of(nb::handle object);

// The name of its type, for messages.
std::string name_of_type(nb::handle object);

constexpr const char* kArrayNeeded =
    "a NumPy array, a torch tensor or another array with __dlpack__ is needed";

enum class Framework : int { other, numpy, torch };

// An array as memory.
struct View {
  void* data = nullptr;
  fulmen_dtype dtype = FULMEN_FP32;
  int ndim = 0;
  int64_t shape[4] = {};
  int64_t strides[4] = {};  // elements
};

// All zero bits until it is read: a call has a place for each argument that there is.
struct Array : View {
  Framework framework = Framework::other;
  DlDevice device{};
  bool read_only = false;
  const char* copied_as = nullptr;                // why this is a copy of the argument: "it has a
                                                  // negative stride"
  const DlExchangeApi* api = nullptr;             // null where the framework has none
  nb::object owner;                               // what keeps shape, strides and data alive beside
                                                  // the argument, if anything must
  std::unique_ptr<nb::ndarray<nb::ro>> imported;  // the same for arrays read through __dlpack__
};

// Reads the array called name in messages. Up to 4 dims. Throws TypeError for what is no array or
// has a dtype that no argument takes, ArgumentError for what has a layout that can't be described.
Array read_array(nb::handle object, const char* name);
// The same for an array that is only read. Arrays that a view of memory cannot describe are copied:
// a NumPy array with a negative stride, a torch tensor with the negative bit. Array::owner is the
// copy.
Array read_input(nb::handle object, const char* name);
// The same for an array that is written. Throws ArgumentError for a torch tensor with the negative
// bit.
Array read_output(nb::handle object, const char* name);

// Keys, values or a cache: an array, or a tuple (array of int8, "q4_0"), whose last dim is the
// bytes of blocks of that format. The view's last dim counts numbers then, as in the C ABI. Throws
// ArgumentError for bytes that are no whole blocks.
Array read_keys(nb::handle object, const char* name, bool written);

// NumPy's dtype of lengths.
nb::handle numpy_int32();  // null where nobody has imported NumPy

bool on_host(const Array& array);
// Whether the address can be one of the array's dtype: not null, unless it is empty, and aligned.
// torch's storages may lose their memory (resize_).
bool is_addressable(const Array& array);

// "cuda:1" or "hip:0": what the C ABI calls the place where the array is. Empty for a host array:
// the default device.
std::string device_of(const Array& array, const char* name);

// The kinds of arrays that a call's path depends on.
enum class Kind : int {
  numpy,
  plain_torch,  // a tensor without a behaviour of its own
  other         // Python finds out
};
Kind kind_of(nb::handle object);
// From now on objects of that type are plain_torch.
void set_plain_torch(nb::handle type);

// A new array of like's framework and device, its contents undefined, and in logical order
// row-major, except that with swap_heads memory has dims 1 and 2 in the other order. name is like's
// in messages.
nb::object new_array(nb::handle object, const Array& like, const char* name, int ndim,
                     const int64_t* shape, fulmen_dtype dtype, bool swap_heads);
// The same on the host (NumPy): zeros in double, for which the reference writes no row that belongs
// to no sequence.
nb::object new_double_array(int ndim, const int64_t* shape);
nb::object new_boolean_array(int ndim, const int64_t* shape);

// The stream that the array's framework computes in now; null on the host.
void* stream_of(const Array& array);

// Device memory from the array's framework, which its stream keeps for as long as it is used; a
// null address where the framework can't be asked.
struct Workspace {
  nb::object owner;
  void* address = nullptr;
};
Workspace new_workspace(nb::handle object, const Array& like, size_t bytes);

}  // namespace fulmen::python
