/* What glibc got after 2.28, by what 2.28 has. Manylinux.cmake links it with --wrap=NAME for each
   function of the list below, so that a wheel for manylinux_2_28 is made of the same objects as any
   other build. */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>

/* Jumps keep all arguments, whatever their types. */
#if defined(__x86_64__)
#define JUMP "jmp "
#define FIRST "GLIBC_2.2.5"
#define OF_X86(version, other) version
#define STAT_VERSION 1
#else
#define JUMP "b "
#define FIRST "GLIBC_2.17"
#define OF_X86(version, other) other
#define STAT_VERSION 0
#endif

#define OLD(name, version)                                                                         \
  __asm__(".symver old_" #name ", " #name "@" version "\n.text\n.p2align 4\n.globl __wrap_" #name  \
          "\n.hidden __wrap_" #name "\n.type __wrap_" #name ", %function\n__wrap_" #name ": " JUMP \
          "old_" #name "\n.size __wrap_" #name ", . - __wrap_" #name "\n")

/* Manylinux.cmake reads these names, one a line. */
OLD(dladdr, FIRST);
OLD(dlclose, FIRST);
OLD(dlerror, FIRST);
OLD(dlinfo, OF_X86("GLIBC_2.3.3", FIRST));
OLD(dlopen, FIRST);
OLD(dlsym, FIRST);
OLD(exp, FIRST);
OLD(exp2, FIRST);
OLD(log, FIRST);
OLD(log2, FIRST);
OLD(pow, FIRST);
OLD(pthread_attr_setaffinity_np, OF_X86("GLIBC_2.3.4", FIRST));
OLD(pthread_create, FIRST);
OLD(pthread_detach, FIRST);
OLD(pthread_getspecific, FIRST);
OLD(pthread_join, FIRST);
OLD(pthread_key_create, FIRST);
OLD(pthread_key_delete, FIRST);
OLD(pthread_once, FIRST);
OLD(pthread_rwlock_rdlock, FIRST);
OLD(pthread_rwlock_unlock, FIRST);
OLD(pthread_rwlock_wrlock, FIRST);
OLD(pthread_setspecific, FIRST);
OLD(pthread_sigmask, FIRST);

/* 2.28 has these in its archive alone. struct stat64 is struct stat on 64 bits. */
int __xstat(int version, const char* path, struct stat* result);
int __lxstat(int version, const char* path, struct stat* result);
int __fxstat(int version, int file, struct stat* result);
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN int __wrap_stat(const char* path, struct stat* result) {
  return __xstat(STAT_VERSION, path, result);
}
HIDDEN int __wrap_lstat(const char* path, struct stat* result) {
  return __lxstat(STAT_VERSION, path, result);
}
HIDDEN int __wrap_fstat(int file, struct stat* result) {
  return __fxstat(STAT_VERSION, file, result);
}
HIDDEN int __wrap_fstat64(int file, struct stat* result) {
  return __fxstat(STAT_VERSION, file, result);
}

/* For std::random_device, to which a failure cannot be told. */
HIDDEN unsigned __wrap_arc4random(void) {
  unsigned number = 0;
  while (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    if (errno != EINTR) abort();
  }
  return number;
}

/* Reference counts are atomic even while a process has one thread. */
HIDDEN char __wrap___libc_single_threaded = 0;
