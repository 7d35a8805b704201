// Lines of the log that a process says once.
#pragma once

#include <string>

namespace fulmen {

// log_line() of the printable line, unless this process has said it.
void log_line_once(const std::string& line);

// What is said of a long message in one line: its first line, and the first one below it that tells
// an error.
std::string sentence_of(const std::string& message);

}  // namespace fulmen
