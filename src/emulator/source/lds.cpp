#include "emulator/source/lds.h"

#include <fmt/format.h>

#include <bit>

namespace fulmen::gpu::emulated {

std::string to_string(const Site& site) { return fmt::format("{}:{}", site.file, site.line); }

void Lds::reset(int bytes, int waves, int wave_size, int most_alignment) {
  bytes_ = bytes;
  most_alignment_ = most_alignment;
  wave_size_ = wave_size;
  wave_shift_ = std::countr_zero(static_cast<unsigned>(wave_size));
  wave_epochs_.assign(static_cast<std::size_t>(waves), 0);
  states_.assign(wave_epochs_.size(), 0);
  all_waves_go_on();
  time_ = 0;
  taken_.assign(static_cast<std::size_t>(waves) * static_cast<std::size_t>(waves), 0);
  const auto words = static_cast<std::size_t>((bytes + 3) / 4);
  memory_.assign(words * 4, std::byte{0xFF});
  words_.assign(words, {});
  accesses_.assign(words, {});
  copied_.clear();
  epoch_ = 1;
  writes_ = 0;
  fences_.assign(static_cast<std::size_t>(waves) * static_cast<std::size_t>(wave_size), {});
}

std::string Lds::out_of_range(int offset, int bytes, const char* verb, int thread,
                              Site site) const {
  if (offset < 0 || offset + bytes > bytes_) {
    return fmt::format("LDS out of range: lane {} {} bytes {} to {} of {} at {}", thread, verb,
                       offset, offset + bytes - 1, bytes_, to_string(site));
  }
  return fmt::format("misaligned LDS access: lane {} {} {} bytes at offset {} at {}", thread, verb,
                     bytes, offset, to_string(site));
}

std::string Lds::race(int word, const char* verb, int thread, Site site, const char* other_verb,
                      const Access& other) const {
  return fmt::format(
      "LDS race: lane {} {} bytes {} to {} at {} that lane {} {} at {}, with no barrier between "
      "them",
      thread, verb, 4 * word, 4 * word + 3, to_string(site), other.thread, other_verb,
      to_string(other.site()));
}

std::string Lds::not_arrived(int word, const char* verb, int thread, Site site) const {
  const Access& copy = copied_[static_cast<std::size_t>(word)];
  return fmt::format(
      "LDS race: lane {} {} bytes {} to {} at {} where a copy of lane {} at {} has not arrived",
      thread, verb, 4 * word, 4 * word + 3, to_string(site), copy.thread, to_string(copy.site()));
}

// Keeps the first reader, or a later one of its wave that the wave's barrier does not order before
// what comes; and a reader of another wave, or else of another lane.
void Lds::remember_read(std::size_t word, uint64_t state, const Who& by, Site site) {
  Access &first = accesses_[word].read, &another = accesses_[word].read_by_another;
  if (first.epoch != epoch_ || (first.wave == by.wave && ordered(first, by))) {
    first = access(by, site);
    return;
  }
  if (first.wave != by.wave || another.epoch != epoch_ || another.wave == by.wave)
    another = access(by, site);
  words_[word].readers_known = state;
}

std::string Lds::why_not_read(int offset, int bytes, int thread, Site site) const {
  if (!in_range(offset, bytes)) return out_of_range(offset, bytes, "reads", thread, site);
  auto at = static_cast<std::size_t>(offset) / 4;
  while (readable(at, who(thread))) ++at;
  const auto word = static_cast<int>(at);
  if (words_[at].copying) return not_arrived(word, "reads", thread, site);
  if (words_[at].written != 0)
    return race(word, "reads", thread, site, "wrote", accesses_[at].written);
  return fmt::format("uninitialised LDS: lane {} reads bytes {} to {} at {}, which nobody wrote",
                     thread, 4 * word, 4 * word + 3, to_string(site));
}

void Lds::fence(int thread) {
  constexpr std::size_t kRemembered = 16;  // more than a wave has between two barriers of others
  Fences& own = fences_[static_cast<std::size_t>(thread)];
  if (!own.since.empty() && own.since.back().at.epoch != epoch_) {
    own.before = own.since.back().writes;
    own.since.clear();
  }
  if (own.since.size() == kRemembered) own.since.pop_front();
  Fence fence{access(who(thread), {}), writes_, std::vector<int>(wave_epochs_.size())};
  for (std::size_t from = 0; from < fence.taken.size(); ++from)
    fence.taken[from] = taken(static_cast<int>(from), wave_of(thread));
  own.since.push_back(std::move(fence));
}

int Lds::fenced(int writer, const Who& by) const {
  const Fences& fences = fences_[static_cast<std::size_t>(writer)];
  for (auto fence = fences.since.rbegin(); fence != fences.since.rend(); ++fence) {
    if (ordered(fence->at, by)) return fence->writes;
  }
  return fences.before;
}

bool Lds::fenced_by(const Fences& fences, const Access& written, const Who& by) const {
  for (const Fence& fence : fences.since) {
    if (!ordered(fence.at, by)) return false;
    if (written.epoch < fence.at.epoch) return true;
    const bool same_wave = written.wave == fence.at.wave;
    if (same_wave ? written.wave_epoch < fence.at.wave_epoch
                  : fence.taken[static_cast<std::size_t>(written.wave)] > written.time)
      return true;
  }
  return false;
}

// Another wave's first lane may fence for all.
bool Lds::fenced_by_another(const Access& written, const Who& by) const {
  if (fenced_by(fences_[static_cast<std::size_t>(by.thread)], written, by)) return true;
  for (std::size_t lane = 0; lane < fences_.size(); lane += static_cast<std::size_t>(wave_size_)) {
    if (fenced_by(fences_[lane], written, by)) return true;
  }
  return false;
}

std::string Lds::read_by_matrix_unit(int offset, void* to, int bytes, int thread, Site site) {
  if (std::string wrong = read(offset, to, bytes, thread, site); !wrong.empty()) return wrong;
  const Who by = who(thread);
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word) {
    const Accesses& w = accesses_[static_cast<std::size_t>(word)];
    if (w.order <= fenced(w.written.thread, by) || fenced_by_another(w.written, by)) continue;
    return fmt::format(
        "LDS without a fence: a matrix unit reads bytes {} to {} at {} that lane {} wrote at {}",
        4 * word, 4 * word + 3, to_string(site), w.written.thread, to_string(w.written.site()));
  }
  return {};
}

bool Lds::write_races(std::size_t word, bool beside, const Who& by) const {
  const Accesses& accesses = accesses_[word];
  if (words_[word].copying || !ordered(accesses.read, by) || !ordered(accesses.read_by_another, by))
    return true;
  return !beside && !settled(word, by);
}

std::string Lds::write_race(int word, bool beside, const char* verb, const Who& by,
                            Site site) const {
  const auto at = static_cast<std::size_t>(word);
  const Accesses& accesses = accesses_[at];
  if (words_[at].copying) return not_arrived(word, verb, by.thread, site);
  if (!beside && !settled(at, by))
    return race(word, verb, by.thread, site, "wrote", accesses.written);
  return race(word, verb, by.thread, site, "read",
              !ordered(accesses.read, by) ? accesses.read : accesses.read_by_another);
}

std::string Lds::write(int offset, const void* from, int bytes, int thread, Site site) {
  if (!in_range(offset, bytes)) return out_of_range(offset, bytes, "writes", thread, site);
  const unsigned half = bytes != 2 ? 0U : offset % 4 == 0 ? 1U : 2U;
  const Who by = who(thread);
  for (int word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
    const auto at = static_cast<std::size_t>(word);
    Word& w = words_[at];
    // Beside a half that another lane wrote by itself.
    const bool beside = half != 0 && w.halves != 0 && (w.halves & half) == 0;
    if (write_races(at, beside, by)) return write_race(word, beside, "writes", by, site);
    w.two_writers = !ordered(accesses_[at].written, by);
    w.halves = static_cast<uint8_t>(half != 0 && w.written == epoch_ ? w.halves | half : half);
    w.written = epoch_;
    accesses_[at].written = access(by, site);
    accesses_[at].order = ++writes_;
  }
  std::memcpy(memory_.data() + offset, from, static_cast<std::size_t>(bytes));
  return {};
}

std::string Lds::begin_copy(int offset, int bytes, int thread, Site site) {
  if (!in_range(offset, bytes)) return out_of_range(offset, bytes, "copies to", thread, site);
  copied_.resize(words_.size());
  const Who by = who(thread);
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word) {
    const auto at = static_cast<std::size_t>(word);
    if (write_races(at, false, by)) return write_race(word, false, "copies to", by, site);
    words_[at].copying = true;
    copied_[at] = access(by, site);
  }
  return {};
}

std::string Lds::arrive(int offset, const void* from, int bytes, int thread, Site site) {
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word)
    words_[static_cast<std::size_t>(word)].copying = false;
  return write(offset, from, bytes, thread, site);
}

std::string Lds::arrive_asynchronously(int offset, const void* from, int bytes, int thread,
                                       Site site) {
  std::string wrong = arrive(offset, from, bytes, thread, site);
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word)
    accesses_[static_cast<std::size_t>(word)].order = 0;
  return wrong;
}

}  // namespace fulmen::gpu::emulated
