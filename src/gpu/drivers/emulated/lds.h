// LDS of a workgroup, with what is needed to find races: who wrote and who read each word since the last barrier.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <span>
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
  void reset(int bytes, int waves, int wave_size, int most_alignment);
  // What was accessed before the barrier is ordered before what comes.
  void barrier() { ++epoch_; }
  // The same among the lanes of one wave.
  void wave_barrier(int wave) { ++wave_epochs_[static_cast<std::size_t>(wave)]; }
  // What one wave accessed before it handed over, at the time that this returns, is ordered before what another does after it took
  // that over.
  int named_barrier_arrive() { return ++time_; }
  void named_barrier_sync(int from, int to, int time) { taken(from, to) = time; }
  // The same where a later one may be known already.
  void follow(int from, int to, int time) {
    if (taken(from, to) < time) taken(from, to) = time;
  }
  // Until when the wave knows what another one did.
  int known(int from, int wave) const { return taken(from, wave); }
  int wave_size() const { return wave_size_; }
  // Both: empty, or what is wrong.
  std::string read(int offset, void* to, int bytes, int thread, Site site);
  std::string write(int offset, const void* from, int bytes, int thread, Site site);
  // A copy by cp.async: from its beginning until it has arrived its destination is nobody's.
  std::string begin_copy(int offset, int bytes, int thread, Site site);
  std::string arrive(int offset, const void* from, int bytes, int thread, Site site);
  // The same by the TMA, which writes as matrix units read: products need no fence.
  std::string arrive_asynchronously(int offset, const void* from, int bytes, int thread, Site site);
  // Matrix units and the TMA, which read LDS by themselves, see what a lane wrote where a fence is between: of the lane itself
  // before a barrier, or of the lane that has them read, after it.
  std::string read_by_matrix_unit(int offset, void* to, int bytes, int thread, Site site);
  void fence(int thread);
  bool holds(int offset, std::span<const std::byte> content) const {
    return std::equal(content.begin(), content.end(), memory_.begin() + offset);
  }

 private:
  struct Access {
    int epoch = 0;
    int thread = 0;
    Site site;
    int wave_epoch = 0;
    int time = 0;
  };
  // A 32-bit word; LDS is addressed in words or more, and written in halves of one, too, each half by a lane.
  struct Word {
    Access written;
    unsigned halves = 0;       // since the last barrier written by themselves: a bit each
    bool two_writers = false;  // of its halves
    int order = 0;             // of the last write among all
    Access read;
    Access read_by_another;  // the first reader that differs from `read`
    bool copying = false;    // a copy is in flight
    Access copied;           // its beginning
  };
  int wave_of(int thread) const { return thread / wave_size_; }
  Access access(int thread, Site site) const {
    return {epoch_, thread, site, wave_epochs_[static_cast<std::size_t>(wave_of(thread))], time_};
  }
  // When the last of what `to` took over from `from` was handed over.
  int& taken(int from, int to) {
    return taken_[static_cast<std::size_t>(from) * wave_epochs_.size() + static_cast<std::size_t>(to)];
  }
  int taken(int from, int to) const {
    return taken_[static_cast<std::size_t>(from) * wave_epochs_.size() + static_cast<std::size_t>(to)];
  }
  // Is there a barrier between this access and what the thread does now, or is it its own?
  bool ordered(const Access& before, int thread) const;
  void remember_read(Word& word, int thread, Site site) const;
  std::string check_range(int offset, int bytes, const char* verb, int thread, Site site) const;
  // What a write meets.
  std::string write_race(int word, bool beside, const char* verb, int thread, Site site) const;
  // That, of a write of some words or of one half; and that it is remembered.
  std::string write_word(int word, unsigned half, int thread, Site site);
  std::string race(int word, const char* verb, int thread, Site site, const char* other_verb, const Access& other) const;
  std::string not_arrived(int word, const char* verb, int thread, Site site) const;

  std::vector<std::byte> memory_;
  std::vector<Word> words_;
  int bytes_ = 0;
  int wave_size_ = 1;
  int most_alignment_ = 16;  // that an access needs
  int epoch_ = 1;
  int writes_ = 0;
  // A lane's fence: when it was, how many writes there were before it, and what the lane's wave had taken over from each other
  // wave.
  struct Fence {
    Access at;
    int writes;
    std::vector<int> taken;
  };
  struct Fences {
    int before = 0;           // writes before the last fence before this barrier
    std::deque<Fence> since;  // the later ones, in order
  };
  // How many of a lane's writes are fenced by itself for products that `thread` takes part in?
  int fenced(int writer, int thread) const;
  // Has a lane executed a fence after a barrier that orders this write before it, and before one that orders it before the thread?
  bool fenced_by_another(const Access& written, int thread) const;
  bool fenced_by(const Fences& fences, const Access& written, int thread) const;
  std::vector<Fences> fences_;  // of each lane
  std::vector<int> wave_epochs_;
  int time_ = 0;            // how often waves have handed over
  std::vector<int> taken_;  // [from][to]
};

}  // namespace fulmen::gpu::emulated
