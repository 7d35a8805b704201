// What libstdc++ got after GCC 8, by what GCC 8 has. The extension module shares libstdc++.so with
// nanobind's backend, which throws exceptions through it; the library has a libstdc++ of its own.
#include <exception>
#include <new>

#define HIDDEN __attribute__((visibility("hidden")))

// std::exception_ptr as a copy constructor and a destructor, which its header calls no more.
extern "C" {
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void* self, const void* other);
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void* self);

// A copy that nobody destroys is a reference more.
HIDDEN void __wrap__ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void* self) {
  void* copy = nullptr;
  _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(&copy, self);
}
HIDDEN void __wrap__ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void* self) {
  _ZNSt15__exception_ptr13exception_ptrD1Ev(self);
  *static_cast<void**>(self) = nullptr;
}
[[noreturn]] HIDDEN void __wrap__ZSt28__throw_bad_array_new_lengthv() {
  throw std::bad_array_new_length();
}
}
