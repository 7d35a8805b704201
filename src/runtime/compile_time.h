// What this thread has spent on compiling kernels: a plan tells what its first call waited for.
#pragma once

namespace fulmen {

struct CompileTime {
  int kernels = 0;
  double seconds = 0;
};

// Since the thread began.
inline CompileTime& compile_time() noexcept {
  constinit thread_local CompileTime spent;
  return spent;
}

}  // namespace fulmen
