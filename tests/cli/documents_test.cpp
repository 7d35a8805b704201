// The documents name only commands and options that the program has.
#include <map>
#include <regex>

#include "program.h"

namespace fulmen::test {
namespace {

class Documents : public ProgramTest {
 protected:
  // "--help" of a command, once.
  const std::string& help(const std::string& command) {
    const auto found = helps_.find(command);
    if (found != helps_.end()) return found->second;
    const Outcome outcome = fulmen({command, "--help"});
    return helps_[command] = outcome.exit_code == 0 ? outcome.out : "";
  }
  static std::vector<std::filesystem::path> pages() {
    std::vector<std::filesystem::path> all{FULMEN_SOURCE_DIR "/README.md",
                                           FULMEN_SOURCE_DIR "/bench/README.md"};
    for (const char* folder :
         {"/docs/guide", "/docs/internals", "/docs/howto", "/docs/performance"}) {
      for (const auto& entry :
           std::filesystem::directory_iterator(std::string(FULMEN_SOURCE_DIR) + folder)) {
        if (entry.path().extension() == ".md") all.push_back(entry.path());
      }
    }
    return all;
  }

 private:
  std::map<std::string, std::string> helps_;
};

// Every `fulmen COMMAND --option ...` of the guides, in a block or in a line: the command exists,
// and has each of the options.
TEST_F(Documents, NameCommandsAndOptionsThatThereAre) {
  const std::regex call(R"((?:^|[`$ /\n])fulmen ([a-z]+)((?: +[^`|\n&>]*)?))"),
      option(R"((--[a-z][a-z0-9-]*))");
  int commands = 0;
  for (const auto& page : pages()) {
    // A command on several lines.
    std::string text = std::regex_replace(read_text(page), std::regex(R"(\\\n\s*)"), " ");
    for (std::sregex_iterator at(text.begin(), text.end(), call), end; at != end; ++at) {
      const std::string command = (*at)[1], arguments = (*at)[2];
      const bool marked = at->str()[0] == '`' || arguments.find("--") != std::string::npos;
      if (!marked) continue;  // "fulmen is ..."
      ++commands;
      const std::string& known = help(command);
      EXPECT_FALSE(known.empty()) << page << ": there is no command " << command;
      for (std::sregex_iterator one(arguments.begin(), arguments.end(), option); one != end;
           ++one) {
        const std::string name = (*one)[1];
        const bool there = std::regex_search(known, std::regex(name + "[^a-z0-9-]"));
        EXPECT_TRUE(there || known.empty())
            << page << ": fulmen " << command << " has no option " << name;
      }
    }
  }
  EXPECT_GE(commands, 60) << "commands of the guides are found";
}

}  // namespace
}  // namespace fulmen::test
