// Words that a report for others may not hold.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fulmen::tools {

class PrivateWords {
 public:
  // This process's: its user, the user's home, $HOME, the machine's name, and folders that
  // variables name.
  static PrivateWords of_this_process();
  // A folder, and the variable that names it.
  using Folder = std::pair<std::string, std::string>;
  PrivateWords(const std::vector<std::string>& homes, const std::string& user,
               const std::string& host, std::vector<Folder> folders = {});

  // Returns the text with homes as ~, folders as $VARIABLE, and names that are whole words as USER
  // and HOST. Control characters are escaped.
  std::string removed_from(std::string text) const;

 private:
  // With their replacements, the longest first.
  std::vector<Folder> folders_;
  std::vector<std::pair<std::string, const char*>> words_;  // with their replacements
};

}  // namespace fulmen::tools
