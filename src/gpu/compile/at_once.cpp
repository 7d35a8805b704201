#include "gpu/compile/at_once.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/compile_time.h"

namespace fulmen::gpu {
namespace {

struct Spent {
  CompileTime time;
  std::exception_ptr thrown;
};

}  // namespace

void at_once(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&](Spent& spent) {
    const CompileTime before = compile_time();
    try {
      for (std::size_t n = 0; (n = next.fetch_add(1)) < count;) work(n);
    } catch (...) {
      spent.thrown = std::current_exception();
    }
    const CompileTime after = compile_time();
    spent.time = {after.kernels - before.kernels, after.seconds - before.seconds};
  };
  const CompileTime before = compile_time();
  const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
  std::vector<Spent> spent(std::max<std::size_t>(1, std::min(count, most)));
  std::vector<std::thread> threads;
  threads.reserve(spent.size());
  for (std::size_t n = 1; n < spent.size(); ++n) {
    try {
      threads.emplace_back(run, std::ref(spent[n]));
    } catch (const std::system_error&) {
      break;  // no more threads: those that there are do it
    }
  }
  run(spent[0]);
  for (std::thread& thread : threads) thread.join();
  CompileTime all = before;
  double longest = 0;
  for (const Spent& one : spent) {
    all.kernels += one.time.kernels;
    longest = std::max(longest, one.time.seconds);
  }
  all.seconds += longest;
  compile_time() = all;
  for (const Spent& one : spent) {
    if (one.thrown) std::rethrow_exception(one.thrown);
  }
}

}  // namespace fulmen::gpu
