#include "nccl_env/settings.h"

#include <sstream>

namespace coppice::nccl_env {

namespace {

const char* const kBlanks = " \t\r";

bool ours(const std::string& name) {
  for (const char* prefix : {"NCCL_", "RCCL_", "COPPICE_"})
    if (name.rfind(prefix, 0) == 0 && name.size() > std::string(prefix).size())
      return name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
  return false;
}

}  // namespace

Settings parse_settings(const std::string& text, const std::string& file) {
  Settings made;
  std::istringstream lines(text);
  int number = 0;
  auto refuse = [&](const std::string& why) { throw Refusal(file + ":" + std::to_string(number) + ": " + why); };
  for (std::string line; std::getline(lines, line);) {
    number++;
    std::size_t from = line.find_first_not_of(kBlanks);
    if (from == std::string::npos || line[from] == '#') continue;
    std::string words = line.substr(from, line.find_last_not_of(kBlanks) - from + 1);
    std::size_t equals = words.find('=');
    if (equals == std::string::npos) refuse("expected NAME=VALUE, found " + words.substr(0, 40));
    std::string name = words.substr(0, equals), value = words.substr(equals + 1);
    if (!ours(name)) refuse("expected a name of NCCL_, RCCL_ or COPPICE_ and capitals, found " + name.substr(0, 40));
    if (value.find('\0') != std::string::npos) refuse("expected text, found a zero byte");
    if (!made.emplace(name, value).second) refuse("expected each name once, found " + name.substr(0, 40) + " again");
  }
  return made;
}

}  // namespace coppice::nccl_env
