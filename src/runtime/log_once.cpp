#include "runtime/log_once.h"

#include <mutex>
#include <set>
#include <string_view>

#include "fulmen/printable.h"
#include "runtime/fork_safe.h"
#include "runtime/hooks.h"

namespace fulmen {

void log_line_once(const std::string& line) {
  constinit static Mutex mutex;
  constinit static MadeOnce<std::set<std::string>> made;
  std::set<std::string>& said = made.get();
  {
    const std::scoped_lock lock(mutex);
    if (!said.insert(line).second) return;
  }
  log_line(printable(line));
}

std::string sentence_of(const std::string& message) {
  const std::size_t end = message.find('\n');
  std::string sentence = message.substr(0, end);
  if (end == std::string::npos || sentence.find("error: ") != std::string::npos) return sentence;
  const std::size_t error = message.find("error: ", end);
  if (error == std::string::npos) return sentence;
  const std::size_t begin = message.rfind('\n', error) + 1;
  return sentence + " " + message.substr(begin, message.find('\n', error) - begin);
}

}  // namespace fulmen
