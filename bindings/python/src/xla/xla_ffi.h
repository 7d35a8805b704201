// The part of XLA's foreign function interface (FFI) that a handler needs, declared by ourselves so
// that the wheel builds without jaxlib (a third of a gigabyte for one header). It is a C ABI,
// version 0.x, whose structs begin with their size and only grow at the end; jaxlib's
// xla/ffi/api/c_api.h is its definition. CallFrame::readable() is to be asked before anything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fulmen::python::xla {

struct Error;  // XLA's own, made by Api::create_error; null is success

enum class DataType : int32_t {
  boolean = 1,
  int8 = 2,
  int32 = 4,
  int64 = 5,
  uint8 = 6,
  uint32 = 8,
  fp16 = 10,
  fp32 = 11,
  bf16 = 16,
  fp8_e5m2 = 19,
  fp8_e4m3fn = 20,
  fp8_e5m2fnuz = 24,
  fp8_e4m3fnuz = 25
};
enum class AttributeType : int32_t { scalar = 3, string = 4 };
enum class Stage : int32_t { execute = 3 };
enum class ErrorCode : int32_t {
  invalid_argument = 3,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
  unavailable = 14
};

struct Extension {
  size_t struct_size;
  int32_t type;  // 1: MetadataExtension
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major, minor;
};

struct CreateErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

// What a GPU's call is asked for: the vendor's stream that it belongs to, scratch that lives as
// long as the stream uses it, and the number of the device.
struct StreamArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  void* stream;  // out
};
struct AllocateArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  size_t bytes, alignment;
  void* data;  // out
};
struct DestroyErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};
struct FreeArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  size_t bytes;
  void* data;
};
struct DeviceArguments {
  size_t struct_size;
  Extension* extensions;
  void* context;
  int32_t device;  // out
};

// A function that is not used is void*, in its place.
struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(CreateErrorArguments* arguments);
  void* error_message;
  void (*destroy_error)(DestroyErrorArguments* arguments);
  void* register_handler;
  Error* (*stream)(StreamArguments* arguments);
  void *register_type, *execution_context, *set_state, *get_state;
  Error* (*allocate)(AllocateArguments* arguments);
  Error* (*free)(FreeArguments* arguments);
  void *schedule, *number_of_threads, *create_future, *set_available, *set_error, *run_id;
  Error* (*device)(DeviceArguments* arguments);
  // More functions may follow.
};

// XLA's query for the interface version of a handler, before it calls it.
struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  static constexpr int32_t kType = 1;
  Extension base;
  Metadata* metadata;
};

// Dense, row-major.
struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;    // 1: Buffer
  Buffer** buffers;  // [size]
};

struct Text {
  const char* data;
  size_t size;
};
struct Scalar {
  DataType dtype;
  void* value;
};
struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  AttributeType* types;  // [size]
  Text** names;          // [size]
  void** values;         // [size]: Scalar* or Text*

  const void* find(std::string_view name, AttributeType type) const {
    for (int64_t n = 0; n < size; ++n) {
      if (types[n] == type && std::string_view(names[n]->data, names[n]->size) == name)
        return values[n];
    }
    return nullptr;
  }
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Buffers arguments, results;
  Attributes attributes;

  bool readable() const { return struct_size >= sizeof(CallFrame); }
};

using Handler = Error*(CallFrame* frame);

}  // namespace fulmen::python::xla
