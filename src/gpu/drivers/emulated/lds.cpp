#include "gpu/drivers/emulated/lds.h"

#include <fmt/format.h>

#include <cstring>

namespace fulmen::gpu::emulated {

std::string to_string(const Site& site) { return fmt::format("{}:{}", site.file, site.line); }

void Lds::reset(int bytes) {
  bytes_ = bytes;
  const auto words = static_cast<std::size_t>((bytes + 3) / 4);
  memory_.assign(words * 4, std::byte{0xFF});
  words_.assign(words, {});
  epoch_ = 1;
}

std::string Lds::check_range(int offset, int bytes, const char* verb, int thread, Site site) const {
  if (offset < 0 || offset + bytes > bytes_) {
    return fmt::format("LDS out of range: lane {} {} bytes {} to {} of {} at {}", thread, verb, offset, offset + bytes - 1, bytes_,
                       to_string(site));
  }
  // 16-byte accesses of rows at multiples of 8 are split by the hardware; words must not be.
  const int alignment = bytes >= 8 ? 8 : bytes;
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

std::string Lds::read(int offset, void* to, int bytes, int thread, Site site) {
  if (std::string wrong = check_range(offset, bytes, "reads", thread, site); !wrong.empty()) return wrong;
  for (int word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
    Word& w = words_[static_cast<std::size_t>(word)];
    if (w.written.epoch == 0) {
      return fmt::format("uninitialised LDS: lane {} reads bytes {} to {} at {}, which nobody wrote", thread, 4 * word,
                         4 * word + 3, to_string(site));
    }
    if (w.written.epoch == epoch_ && (w.written.thread != thread || w.two_writers)) {
      return race(word, "reads", thread, site, "wrote", w.written);
    }
    if (w.read.epoch != epoch_) {
      w.read = {epoch_, thread, site};
    } else if (w.read.thread != thread) {
      w.read_by_another = {epoch_, thread, site};
    }
  }
  std::memcpy(to, memory_.data() + offset, static_cast<std::size_t>(bytes));
  return {};
}

std::string Lds::write_word(int word, unsigned half, int thread, Site site) {
  Word& w = words_[static_cast<std::size_t>(word)];
  const bool written = w.written.epoch == epoch_, by_another = written && w.written.thread != thread;
  // Beside a half that another lane wrote by itself.
  const bool beside = half != 0 && w.halves != 0 && (w.halves & half) == 0;
  if ((by_another || (written && w.two_writers)) && !beside) return race(word, "writes", thread, site, "wrote", w.written);
  for (const Access* access : {&w.read, &w.read_by_another}) {
    if (access->epoch == epoch_ && access->thread != thread) return race(word, "writes", thread, site, "read", *access);
  }
  w.two_writers = by_another;
  w.halves = half == 0 ? 0 : written ? w.halves | half : half;
  w.written = {epoch_, thread, site};
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

}  // namespace fulmen::gpu::emulated
