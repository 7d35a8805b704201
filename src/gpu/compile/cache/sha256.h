// SHA-256 (FIPS 180-4): names of cache files and their checksums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fulmen::gpu {

using Digest = std::array<std::uint8_t, 32>;
Digest sha256(std::span<const std::byte> data);
Digest sha256(std::string_view text);
std::string hex(const Digest& digest);

}  // namespace fulmen::gpu
