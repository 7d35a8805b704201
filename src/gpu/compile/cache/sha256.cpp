#include "gpu/compile/cache/sha256.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

// The first 32 bits of the fractions of the cube (square) roots of the first primes, as the
// standard defines its constants.
struct Constants {
  std::array<std::uint32_t, 64> k;
  std::array<std::uint32_t, 8> start;
};
std::uint32_t fraction_bits(long double root) {
  return static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
}
const Constants& constants() {
  constinit static MadeOnce<const Constants> made;
  return made.get([] {
    Constants c{};
    std::size_t count = 0;
    for (int n = 2; count < c.k.size(); ++n) {
      bool prime = true;
      for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
      if (!prime) continue;
      if (count < c.start.size())
        c.start[count] = fraction_bits(std::sqrt(static_cast<long double>(n)));
      c.k[count++] = fraction_bits(std::cbrt(static_cast<long double>(n)));
    }
    return c;
  });
}

void block(std::array<std::uint32_t, 8>& state, const std::uint8_t* bytes) {
  const Constants& c = constants();
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) {
    w[t] = static_cast<std::uint32_t>(bytes[4 * t]) << 24U |
           static_cast<std::uint32_t>(bytes[4 * t + 1]) << 16U |
           static_cast<std::uint32_t>(bytes[4 * t + 2]) << 8U | bytes[4 * t + 3];
  }
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t a = w[t - 15], b = w[t - 2];
    w[t] = w[t - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3U) + w[t - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10U);
  }
  auto s = state;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t sum1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const std::uint32_t choose = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const std::uint32_t t1 = s[7] + sum1 + choose + c.k[t] + w[t];
    const std::uint32_t sum0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const std::uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    s = {t1 + sum0 + majority, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t n = 0; n < 8; ++n) state[n] += s[n];
}

}  // namespace

Digest sha256(std::span<const std::byte> data) {
  auto state = constants().start;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  std::size_t left = data.size();
  for (; left >= 64; left -= 64, bytes += 64) block(state, bytes);
  // The rest, a one bit, zeros, and the length in bits.
  std::array<std::uint8_t, 128> tail{};
  if (left > 0) std::memcpy(tail.data(), bytes, left);
  tail[left] = 0x80;
  const std::size_t end = left + 9 <= 64 ? 64 : 128;
  const std::uint64_t bits = static_cast<std::uint64_t>(data.size()) * 8;
  for (std::size_t n = 0; n < 8; ++n)
    tail[end - 1 - n] = static_cast<std::uint8_t>(bits >> (8 * n));
  block(state, tail.data());
  if (end == 128) block(state, tail.data() + 64);
  Digest digest{};
  for (std::size_t n = 0; n < digest.size(); ++n)
    digest[n] = static_cast<std::uint8_t>(state[n / 4] >> (24 - 8 * (n % 4)));
  return digest;
}

Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

std::string hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace fulmen::gpu
