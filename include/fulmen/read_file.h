// Reading files whose contents somebody else may have chosen.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "fulmen/export.h"
#include "fulmen/status.h"

namespace fulmen {

enum class FileTrust {
  own,    // this user's: another user's file, one that others can write, and a symbolic link are
          // refused
  given,  // the user named the file or its folder
};

// All bytes of a regular file; nothing where there is no file of that name. The call never blocks:
// a FIFO or a device is refused unread, and so is a file of more than most_bytes, before memory is
// asked for. Errors: StatusCode::unavailable with the reason alone, without the path.
FULMEN_API Result<std::optional<std::string>> read_regular_file(const std::string& path,
                                                                std::size_t most_bytes,
                                                                FileTrust trust);

// Size limit of a file of tuned results (tuned_results_file() in backend.h): a larger one is not
// used.
inline constexpr std::size_t kMaxTunedResultsBytes = std::size_t{16} << 20;

}  // namespace fulmen
