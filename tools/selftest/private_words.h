// What a report that is sent to others may not hold.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fulmen::tools {

class PrivateWords {
 public:
  // This process's: its user, the user's home, $HOME, and the machine's name.
  static PrivateWords of_this_process();
  PrivateWords(std::vector<std::string> homes, const std::string& user, const std::string& host);

  // The text with homes as ~, and the names, where they are whole words, as USER and HOST; what a terminal would obey is escaped.
  std::string removed_from(std::string text) const;

 private:
  std::vector<std::string> homes_;                          // the longest first
  std::vector<std::pair<std::string, const char*>> words_;  // and what stands for them
};

}  // namespace fulmen::tools
