/* The start of a program under glibc 2.28, which expects each program to call its own constructors;
   from 2.34 on the C library does. */
typedef void Constructor(int, char**, char**);
extern Constructor* __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor* __init_array_end[] __attribute__((visibility("hidden")));
void _init(void);

static void construct(int argc, char** argv, char** environment) {
  _init();
  for (Constructor** c = __init_array_start; c != __init_array_end; ++c)
    (*c)(argc, argv, environment);
}

#if defined(__x86_64__)
__asm__(".symver old_start, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start, __libc_start_main@GLIBC_2.17");
#endif
int old_start(int (*)(int, char**, char**), int, char**, Constructor*, void (*)(void),
              void (*)(void), void*);

__attribute__((visibility("hidden"))) int __wrap___libc_start_main(
    int (*program)(int, char**, char**), int argc, char** argv, Constructor* constructors,
    void (*destructors)(void), void (*loader)(void), void* stack) {
  (void)constructors;
  return old_start(program, argc, argv, construct, destructors, loader, stack);
}
