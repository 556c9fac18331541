#include "aggregation/protocols.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace coppice::aggregation {

std::span<const Protocol> protocols() {
  // One line each, in alphabetical order.
  static const std::vector<Protocol> all = {};
  return all;
}

const Protocol& protocol(std::string_view name) {
  std::string names;
  for (const Protocol& each : protocols()) {
    if (each.name == name) return each;
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("expected one of the protocols " + names + ", found " + std::string(name));
}

}  // namespace coppice::aggregation
