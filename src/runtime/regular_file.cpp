#include "runtime/regular_file.h"

#include <fmt/format.h>

#include <new>
#include <system_error>

namespace fulmen {
namespace {

Status failure(const std::string& why) { return {StatusCode::unavailable, why}; }

}  // namespace

Result<std::optional<RegularFile>> RegularFile::open(const std::string& path, FileTrust trust) {
  const bool own = trust == FileTrust::own;
  std::error_code error;
  platform::File file =
      platform::File::open(path, own ? platform::Links::kept : platform::Links::followed, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory)
    return std::optional<RegularFile>();
  if (error) return failure(error.message());
  const platform::FileFacts facts = file.facts();
  if (!facts.is_regular) return failure("no regular file");
  if (own && !file.is_this_users()) return failure("another user's file");
  if (own && file.is_writable_by_others()) return failure("others can write it");
  return std::optional(RegularFile(std::move(file), static_cast<std::size_t>(facts.bytes)));
}

Result<std::optional<std::string>> read_regular_file(const std::string& path,
                                                     std::size_t most_bytes, FileTrust trust) {
  try {
    const Result<std::optional<RegularFile>> file = RegularFile::open(path, trust);
    if (!file.ok()) return file.status();
    if (!*file) return std::optional<std::string>();
    const RegularFile& found = **file;
    if (found.bytes() > most_bytes)
      return failure(fmt::format("it has {} bytes, up to {} are read", found.bytes(), most_bytes));
    auto text = found.read<std::string>(found.bytes());
    if (text.size() < found.bytes()) return failure("it cannot be read");
    return std::optional(std::move(text));
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory for it");
  }
}

}  // namespace fulmen
