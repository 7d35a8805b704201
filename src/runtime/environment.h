// The environment's variables, as far as they may be trusted.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace fulmen {

// Whether the process has rights that its caller lacks: a set-user-ID or set-group-ID program, or
// one with file capabilities. The caller, who may be anybody, set the environment then.
bool has_more_rights_than_its_caller() noexcept;

// The variable's value; empty where it is not set, and in a process that has more rights than its
// caller. Everything here reads the environment by this function: variables name libraries to load,
// programs to start and folders to write to.
std::string environment(const char* name);

// Whether a variable is set to something other than 0.
bool environment_flag(const char* name);

// Whether a variable's name begins with one of these: one pass over the environment, as long as one
// lookup.
bool environment_has(std::initializer_list<std::string_view> prefixes) noexcept;

// PATH, and /usr/local/bin:/usr/bin:/bin (on Windows System32) where environment() has none.
std::string program_path();

}  // namespace fulmen
