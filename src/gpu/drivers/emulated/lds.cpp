#include "gpu/drivers/emulated/lds.h"

#include <fmt/format.h>

#include <cstring>

namespace fulmen::gpu::emulated {

std::string to_string(const Site& site) { return fmt::format("{}:{}", site.file, site.line); }

void Lds::reset(int bytes, int waves, int wave_size, int most_alignment) {
  bytes_ = bytes;
  most_alignment_ = most_alignment;
  wave_size_ = wave_size;
  wave_epochs_.assign(static_cast<std::size_t>(waves), 0);
  time_ = 0;
  taken_.assign(static_cast<std::size_t>(waves) * static_cast<std::size_t>(waves), 0);
  const auto words = static_cast<std::size_t>((bytes + 3) / 4);
  memory_.assign(words * 4, std::byte{0xFF});
  words_.assign(words, {});
  epoch_ = 1;
  writes_ = 0;
  fences_.assign(static_cast<std::size_t>(waves) * static_cast<std::size_t>(wave_size), {});
}

std::string Lds::check_range(int offset, int bytes, const char* verb, int thread, Site site) const {
  if (offset < 0 || offset + bytes > bytes_) {
    return fmt::format("LDS out of range: lane {} {} bytes {} to {} of {} at {}", thread, verb, offset, offset + bytes - 1, bytes_,
                       to_string(site));
  }
  const int alignment = bytes < most_alignment_ ? bytes : most_alignment_;
  if (offset % alignment != 0 || (bytes != 2 && bytes % 4 != 0)) {
    return fmt::format("misaligned LDS access: lane {} {} {} bytes at offset {} at {}", thread, verb, bytes, offset,
                       to_string(site));
  }
  return {};
}

std::string Lds::race(int word, const char* verb, int thread, Site site, const char* other_verb, const Access& other) const {
  return fmt::format("LDS race: lane {} {} bytes {} to {} at {} that lane {} {} at {}, with no barrier between them", thread, verb,
                     4 * word, 4 * word + 3, to_string(site), other.thread, other_verb, to_string(other.site));
}

std::string Lds::not_arrived(int word, const char* verb, int thread, Site site) const {
  const Access& copy = words_[static_cast<std::size_t>(word)].copied;
  return fmt::format("LDS race: lane {} {} bytes {} to {} at {} where a copy of lane {} at {} has not arrived", thread, verb,
                     4 * word, 4 * word + 3, to_string(site), copy.thread, to_string(copy.site));
}

bool Lds::ordered(const Access& before, int thread) const {
  if (before.epoch != epoch_ || before.thread == thread) return true;
  const int wave = wave_of(thread), other = wave_of(before.thread);
  if (other == wave) return before.wave_epoch != wave_epochs_[static_cast<std::size_t>(wave)];
  return taken(other, wave) > before.time;
}

// The first reader, or a later one of its wave that the wave's barrier does not order before what comes; and one of another wave,
// or else another lane.
void Lds::remember_read(Word& word, int thread, Site site) const {
  const auto same_wave = [&](const Access& a) { return wave_of(a.thread) == wave_of(thread); };
  Access& first = word.read;
  if (first.epoch != epoch_ || (same_wave(first) && ordered(first, thread))) {
    first = access(thread, site);
  } else if (!same_wave(first) || word.read_by_another.epoch != epoch_ || same_wave(word.read_by_another)) {
    word.read_by_another = access(thread, site);
  }
}

std::string Lds::read(int offset, void* to, int bytes, int thread, Site site) {
  if (std::string wrong = check_range(offset, bytes, "reads", thread, site); !wrong.empty()) return wrong;
  for (int word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
    Word& w = words_[static_cast<std::size_t>(word)];
    if (w.copying) return not_arrived(word, "reads", thread, site);
    if (w.written.epoch == 0) {
      return fmt::format("uninitialised LDS: lane {} reads bytes {} to {} at {}, which nobody wrote", thread, 4 * word,
                         4 * word + 3, to_string(site));
    }
    if (!ordered(w.written, thread) || (w.written.epoch == epoch_ && w.two_writers)) {
      return race(word, "reads", thread, site, "wrote", w.written);
    }
    remember_read(w, thread, site);
  }
  std::memcpy(to, memory_.data() + offset, static_cast<std::size_t>(bytes));
  return {};
}

void Lds::fence(int thread) {
  constexpr std::size_t kRemembered = 16;  // more than a wave has between two barriers of others
  Fences& own = fences_[static_cast<std::size_t>(thread)];
  if (!own.since.empty() && own.since.back().at.epoch != epoch_) {
    own.before = own.since.back().writes;
    own.since.clear();
  }
  if (own.since.size() == kRemembered) own.since.pop_front();
  Fence fence{access(thread, {}), writes_, std::vector<int>(wave_epochs_.size())};
  for (std::size_t from = 0; from < fence.taken.size(); ++from) fence.taken[from] = taken(static_cast<int>(from), wave_of(thread));
  own.since.push_back(std::move(fence));
}

int Lds::fenced(int writer, int thread) const {
  const Fences& fences = fences_[static_cast<std::size_t>(writer)];
  for (auto fence = fences.since.rbegin(); fence != fences.since.rend(); ++fence) {
    if (ordered(fence->at, thread)) return fence->writes;
  }
  return fences.before;
}

bool Lds::fenced_by(const Fences& fences, const Access& written, int thread) const {
  const int wave = wave_of(written.thread);
  for (const Fence& fence : fences.since) {
    if (!ordered(fence.at, thread)) return false;
    if (written.epoch < fence.at.epoch) return true;
    const bool same_wave = wave == wave_of(fence.at.thread);
    if (same_wave ? written.wave_epoch < fence.at.wave_epoch : fence.taken[static_cast<std::size_t>(wave)] > written.time)
      return true;
  }
  return false;
}

// Another wave's first lane may fence for all.
bool Lds::fenced_by_another(const Access& written, int thread) const {
  if (fenced_by(fences_[static_cast<std::size_t>(thread)], written, thread)) return true;
  for (std::size_t lane = 0; lane < fences_.size(); lane += static_cast<std::size_t>(wave_size_)) {
    if (fenced_by(fences_[lane], written, thread)) return true;
  }
  return false;
}

std::string Lds::read_by_matrix_unit(int offset, void* to, int bytes, int thread, Site site) {
  if (std::string wrong = read(offset, to, bytes, thread, site); !wrong.empty()) return wrong;
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word) {
    const Word& w = words_[static_cast<std::size_t>(word)];
    if (w.order <= fenced(w.written.thread, thread) || fenced_by_another(w.written, thread)) continue;
    return fmt::format("LDS without a fence: a matrix unit reads bytes {} to {} at {} that lane {} wrote at {}", 4 * word,
                       4 * word + 3, to_string(site), w.written.thread, to_string(w.written.site));
  }
  return {};
}

std::string Lds::write_race(int word, bool beside, const char* verb, int thread, Site site) const {
  const Word& w = words_[static_cast<std::size_t>(word)];
  if (w.copying) return not_arrived(word, verb, thread, site);
  const bool another = !ordered(w.written, thread) || (w.written.epoch == epoch_ && w.two_writers);
  if (another && !beside) return race(word, verb, thread, site, "wrote", w.written);
  for (const Access* access : {&w.read, &w.read_by_another}) {
    if (!ordered(*access, thread)) return race(word, verb, thread, site, "read", *access);
  }
  return {};
}

std::string Lds::write_word(int word, unsigned half, int thread, Site site) {
  Word& w = words_[static_cast<std::size_t>(word)];
  const bool written = w.written.epoch == epoch_, by_another = !ordered(w.written, thread);
  // Beside a half that another lane wrote by itself.
  const bool beside = half != 0 && w.halves != 0 && (w.halves & half) == 0;
  if (std::string wrong = write_race(word, beside, "writes", thread, site); !wrong.empty()) return wrong;
  w.two_writers = by_another;
  w.halves = half == 0 ? 0 : written ? w.halves | half : half;
  w.written = access(thread, site);
  w.order = ++writes_;
  return {};
}

std::string Lds::write(int offset, const void* from, int bytes, int thread, Site site) {
  if (std::string wrong = check_range(offset, bytes, "writes", thread, site); !wrong.empty()) return wrong;
  const unsigned half = bytes != 2 ? 0U : offset % 4 == 0 ? 1U : 2U;
  for (int word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
    if (std::string wrong = write_word(word, half, thread, site); !wrong.empty()) return wrong;
  }
  std::memcpy(memory_.data() + offset, from, static_cast<std::size_t>(bytes));
  return {};
}

std::string Lds::begin_copy(int offset, int bytes, int thread, Site site) {
  if (std::string wrong = check_range(offset, bytes, "copies to", thread, site); !wrong.empty()) return wrong;
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word) {
    if (std::string wrong = write_race(word, false, "copies to", thread, site); !wrong.empty()) return wrong;
    Word& w = words_[static_cast<std::size_t>(word)];
    w.copying = true;
    w.copied = access(thread, site);
  }
  return {};
}

std::string Lds::arrive(int offset, const void* from, int bytes, int thread, Site site) {
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word) words_[static_cast<std::size_t>(word)].copying = false;
  return write(offset, from, bytes, thread, site);
}

std::string Lds::arrive_asynchronously(int offset, const void* from, int bytes, int thread, Site site) {
  std::string wrong = arrive(offset, from, bytes, thread, site);
  for (int word = offset / 4; word < (offset + bytes) / 4; ++word) words_[static_cast<std::size_t>(word)].order = 0;
  return wrong;
}

}  // namespace fulmen::gpu::emulated
