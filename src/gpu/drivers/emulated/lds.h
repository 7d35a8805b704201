// LDS of a workgroup, with what is needed to find races: who wrote and who read each word since the last barrier.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fulmen::gpu::emulated {

struct Site {
  const char* file = "";
  int line = 0;
};
std::string to_string(const Site& site);

class Lds {
 public:
  // Fresh and uninitialised memory for a workgroup.
  void reset(int bytes);
  // What was accessed before the barrier is ordered before what comes.
  void barrier() { ++epoch_; }
  // Both: empty, or what is wrong.
  std::string read(int offset, void* to, int bytes, int thread, Site site);
  std::string write(int offset, const void* from, int bytes, int thread, Site site);

 private:
  struct Access {
    int epoch = 0;
    int thread = 0;
    Site site;
  };
  // A 32-bit word; LDS is addressed in words or more, and written in halves of one, too, each half by a lane.
  struct Word {
    Access written;
    unsigned halves = 0;       // since the last barrier written by themselves: a bit each
    bool two_writers = false;  // of its halves
    Access read;
    Access read_by_another;  // the first reader that differs from `read`
  };
  std::string check_range(int offset, int bytes, const char* verb, int thread, Site site) const;
  // What a write of some words, or of one half, meets; and that it is remembered.
  std::string write_word(int word, unsigned half, int thread, Site site);
  std::string race(int word, const char* verb, int thread, Site site, const char* other_verb, const Access& other) const;

  std::vector<std::byte> memory_;
  std::vector<Word> words_;
  int bytes_ = 0;
  int epoch_ = 1;
};

}  // namespace fulmen::gpu::emulated
