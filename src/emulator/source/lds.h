// LDS of a workgroup, with what is needed to find races: who wrote and who read each word since the
// last barrier.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
  void barrier() {
    ++epoch_;
    all_waves_go_on();
  }
  // A barrier among the lanes of one wave.
  void wave_barrier(int wave) {
    ++wave_epochs_[static_cast<std::size_t>(wave)];
    states_[static_cast<std::size_t>(wave)] = ++last_state_;
  }
  // What a wave accessed before it arrives, at the time that this returns, is ordered before what
  // another wave does after named_barrier_sync() with that time.
  int named_barrier_arrive() {
    all_waves_go_on();
    return ++time_;
  }
  void named_barrier_sync(int from, int to, int time) { taken(from, to) = time; }
  // named_barrier_sync() for a wave that may know a later time already.
  void follow(int from, int to, int time) {
    if (taken(from, to) < time) taken(from, to) = time;
  }
  // The time until which `wave` knows what `from` did.
  int known(int from, int wave) const { return taken(from, wave); }
  int wave_size() const { return wave_size_; }
  // The functions below return an empty string, or what is wrong.
  std::string read(int offset, void* to, int bytes, int thread, Site site) {
    return reads(offset, to, bytes, thread, site) ? std::string()
                                                  : why_not_read(offset, bytes, thread, site);
  }
  std::string write(int offset, const void* from, int bytes, int thread, Site site);
  // A copy by cp.async. From its beginning until it has arrived, its destination is nobody's.
  std::string begin_copy(int offset, int bytes, int thread, Site site);
  std::string arrive(int offset, const void* from, int bytes, int thread, Site site);
  // A copy by the TMA, which writes as matrix units read: products need no fence.
  std::string arrive_asynchronously(int offset, const void* from, int bytes, int thread, Site site);
  // Matrix units and the TMA read LDS by themselves. They see what a lane wrote if a fence lies
  // between: by that lane before a barrier, or after it by the lane that has them read.
  std::string read_by_matrix_unit(int offset, void* to, int bytes, int thread, Site site);
  void fence(int thread);
  bool holds(int offset, std::span<const std::byte> content) const {
    return std::equal(content.begin(), content.end(), memory_.begin() + offset);
  }

 private:
  // A lane, and how far its wave is.
  struct Who {
    int thread, wave, wave_epoch;
  };
  struct Access {
    const char* file = "";
    int line = 0;
    int epoch = 0;
    int wave_epoch = 0;
    int time = 0;
    int16_t thread = 0;
    int16_t wave = 0;
    Site site() const { return {file, line}; }
  };
  // A 32-bit word; LDS is addressed in words or more, and written in halves of one, too, each half
  // by a lane. What each access looks at: so small that the words of one access share a line of the
  // cache.
  struct Word {
    uint64_t readers_known = 0;  // state of the last wave whose reads are all in `Accesses`
    int written = 0;             // the epoch of the last write; 0: nobody wrote
    uint8_t halves = 0;          // a bit a half that was written alone since the last barrier
    bool two_writers = false;    // two lanes wrote its halves
    bool copying = false;        // a copy is in flight: copied_ has its beginning
  };
  struct Accesses {
    Access written;
    Access read;
    Access read_by_another;  // the first reader that differs from `read`
    int order = 0;           // the last write's number among all writes
  };
  int wave_of(int thread) const { return thread >> wave_shift_; }
  Who who(int thread) const {
    const int wave = wave_of(thread);
    return {thread, wave, wave_epochs_[static_cast<std::size_t>(wave)]};
  }
  Access access(const Who& by, Site site) const {
    return {site.file,
            site.line,
            epoch_,
            by.wave_epoch,
            time_,
            static_cast<int16_t>(by.thread),
            static_cast<int16_t>(by.wave)};
  }
  // The time of the last arrival of `from` that `to` synchronised with.
  int& taken(int from, int to) {
    return taken_[static_cast<std::size_t>(from) * wave_epochs_.size() +
                  static_cast<std::size_t>(to)];
  }
  int taken(int from, int to) const {
    return taken_[static_cast<std::size_t>(from) * wave_epochs_.size() +
                  static_cast<std::size_t>(to)];
  }
  // Returns true if a barrier lies between this access and what the lane does now, or if the access
  // is the lane's own.
  bool ordered(const Access& before, const Who& now) const {
    if (before.epoch != epoch_ || before.thread == now.thread) return true;
    return before.wave == now.wave ? before.wave_epoch != now.wave_epoch
                                   : taken(before.wave, now.wave) > before.time;
  }
  // Returns true if the last write of the word is ordered before what the lane does now.
  bool settled(std::size_t word, const Who& now) const {
    return words_[word].written != epoch_ ||
           (!words_[word].two_writers && ordered(accesses_[word].written, now));
  }
  bool in_range(int offset, int bytes) const {
    const int alignment = bytes < most_alignment_ ? bytes : most_alignment_;
    const bool power_of_two = (alignment & (alignment - 1)) == 0;
    const bool aligned = power_of_two ? (offset & (alignment - 1)) == 0 : offset % alignment == 0;
    return offset >= 0 && offset + bytes <= bytes_ && aligned && (bytes == 2 || bytes % 4 == 0);
  }
  std::string out_of_range(int offset, int bytes, const char* verb, int thread, Site site) const;
  bool readable(std::size_t word, const Who& by) const {
    return !words_[word].copying && words_[word].written != 0 && settled(word, by);
  }
  // Reads and records the access. False: the lane may not read.
  bool reads(int offset, void* to, int bytes, int thread, Site site) {
    if (!in_range(offset, bytes)) return false;
    const Who by = who(thread);
    const uint64_t state = states_[static_cast<std::size_t>(by.wave)];
    const auto end = static_cast<std::size_t>(offset + bytes + 3) / 4;
    for (std::size_t word = static_cast<std::size_t>(offset) / 4; word < end; ++word) {
      if (!readable(word, by)) return false;
      if (words_[word].readers_known != state) remember_read(word, state, by, site);
    }
    std::memcpy(to, memory_.data() + offset, static_cast<std::size_t>(bytes));
    return true;
  }
  void remember_read(std::size_t word, uint64_t state, const Who& by, Site site);
  std::string why_not_read(int offset, int bytes, int thread, Site site) const;
  // Races of a write with earlier accesses.
  bool write_races(std::size_t word, bool beside, const Who& by) const;
  std::string write_race(int word, bool beside, const char* verb, const Who& by, Site site) const;
  std::string race(int word, const char* verb, int thread, Site site, const char* other_verb,
                   const Access& other) const;
  std::string not_arrived(int word, const char* verb, int thread, Site site) const;

  std::vector<std::byte> memory_;
  std::vector<Word> words_;
  std::vector<Accesses> accesses_;  // one a word
  std::vector<Access> copied_;      // one a word, once a copy began
  int bytes_ = 0;
  int wave_size_ = 1;
  int wave_shift_ = 0;       // wave_size_ is 2 to it
  int most_alignment_ = 16;  // the most that an access needs
  int epoch_ = 1;
  int writes_ = 0;
  // A lane's fence: when it was, how many writes there were before it, and what the lane's wave had
  // taken over from each other wave.
  struct Fence {
    Access at;
    int writes;
    std::vector<int> taken;
  };
  struct Fences {
    int before = 0;           // writes before the last fence before this barrier
    std::deque<Fence> since;  // the later ones, in order
  };
  // How many of a lane's writes it has fenced itself, for products that `by` takes part in.
  int fenced(int writer, const Who& by) const;
  // Returns true if a lane executed a fence after a barrier that orders this write before it, and
  // before one that orders it before `by`.
  bool fenced_by_another(const Access& written, const Who& by) const;
  bool fenced_by(const Fences& fences, const Access& written, const Who& by) const;
  std::vector<Fences> fences_;  // one a lane
  std::vector<int> wave_epochs_;
  // A number for each wave, unique among waves. Every barrier that orders its accesses changes it.
  std::vector<uint64_t> states_;
  uint64_t last_state_ = 0;
  void all_waves_go_on() {
    for (uint64_t& state : states_) state = ++last_state_;
  }
  int time_ = 0;            // number of arrivals at named barriers
  std::vector<int> taken_;  // [from][to]
};

}  // namespace fulmen::gpu::emulated
