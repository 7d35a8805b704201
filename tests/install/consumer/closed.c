/* A library that a program opens, computes with on several threads, and closes: its threads must
 * have ended before its code goes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fulmen/fulmen_c.h>
#include <pthread.h>
#include <stdio.h>

static int threads(void) {
  int count = -2; /* without . and .. */
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == NULL) return -1;
  while (readdir(tasks) != NULL) ++count;
  closedir(tasks);
  return count;
}

static void* library;
static int threads_inside;
static float numbers[4 * 256 * 64], out[4 * 256 * 64];

/* A thread that has called keeps the library loaded while it lives: for the sentence of its last
 * error. */
static void* compute(void* name) {
  void (*tensors_init)(fulmen_tensors*, size_t);
  void (*options_init)(fulmen_options*, size_t);
  int (*attention)(const fulmen_tensors*, const fulmen_options*, const char*);
  fulmen_tensors t;
  fulmen_options options;
  library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
  *(void**)&tensors_init = dlsym(library, "fulmen_tensors_init_sized");
  *(void**)&options_init = dlsym(library, "fulmen_options_init_sized");
  *(void**)&attention = dlsym(library, "fulmen_attention");
  tensors_init(&t, sizeof t);
  options_init(&options, sizeof options);
  t.q = t.k = t.v = t.out = fulmen_tensor_bshd(numbers, FULMEN_FP32, 4, 256, 4, 16);
  t.out.data = out;
  options.num_threads = 4;
  if (attention(&t, &options, "cpu") != FULMEN_OK) return "attention failed";
  threads_inside = threads();
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t thread;
  void* error = "usage: closed LIBRARY";
  if (argc == 2 && pthread_create(&thread, NULL, compute, argv[1]) == 0)
    pthread_join(thread, &error);
  if (error != NULL) return puts(error), 1;
  if (threads_inside < 3) return printf("%d threads computed\n", threads_inside), 1;
  dlclose(library);
  if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL)
    return puts("the library is still loaded"), 1;
  if (threads() != 1) return printf("%d threads are left of %d\n", threads(), threads_inside), 1;
  return 0;
}
