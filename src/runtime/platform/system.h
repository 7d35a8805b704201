// Facts of the system, the processor and the environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fulmen::platform {

enum class System { linux, windows, macos };
extern const System kThisSystem;

// Whether the process has rights that its caller lacks, who set the environment.
bool has_more_rights_than_its_caller() noexcept;
// Nothing where it is not set, or the caller is not to be trusted.
std::optional<std::string> environment_variable(const char* name);
void set_environment_variable(const char* name, const char* value);  // null: removes it
// "NAME=value" of each.
std::vector<std::string> environment_variables();
bool has_variable_with_prefix(std::initializer_list<std::string_view> prefixes) noexcept;

// In lists of folders: PATH.
extern const char kListSeparator;
// Where programs are if PATH is not set.
extern const char* const kUsualProgramFolders;
// What names of programs end in.
extern const char* const kProgramSuffix;
// True of a path, false of a name that is looked for.
bool has_folder(std::string_view name) noexcept;

std::size_t memory_bytes() noexcept;
std::string processor_name();  // empty: unknown
// 0: unknown.
std::int64_t cache_bytes(int level) noexcept;
// Asks for the use of AMX's tiles, which begins at the first request. False where the system does
// not give it.
bool request_amx() noexcept;
// An Arm processor's dot products of bytes, and products of their matrices; false of others.
bool has_arm_dot_products() noexcept;
bool has_arm_byte_matrices() noexcept;

// The user who runs this process; empty: unknown.
std::string user_name();
std::string home_folder();
std::string host_name();
// Standard output is 1, standard error 2.
bool is_terminal(int stream) noexcept;

}  // namespace fulmen::platform
