// The structs of DLPack 1 (https://dmlc.github.io/dlpack) that the binding reads: a tensor, and the
// table of functions by which a framework's type hands out views without a Python call (the type's
// attribute __dlpack_c_exchange_api__).
#pragma once

#include <cstdint>

namespace fulmen::python {

enum DlDeviceType : int32_t {
  kDlCpu = 1,
  kDlCuda = 2,
  kDlCudaHost = 3,
  kDlRocm = 10,
  kDlRocmHost = 11,
  kDlCudaManaged = 13
};
enum DlTypeCode : uint8_t {
  kDlInt = 0,
  kDlUint = 1,
  kDlFloat = 2,
  kDlBfloat = 4,
  kDlComplex = 5,
  kDlBool = 6
};

struct DlDevice {
  int32_t type;
  int32_t id;
};

struct DlDtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDtype dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null is row-major
  uint64_t byte_offset;
};

struct DlExchangeApi {
  uint32_t major, minor;
  DlExchangeApi* previous;  // an older table, null where there is none
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  // Fills in a view that the object owns; 0, or -1 with a Python exception. May be null.
  int (*view)(void* object, DlTensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace fulmen::python
