#include "group_action.h"

#include <numeric>

namespace coppice {

GroupAction GroupAction::trivial(const Digraph& graph) {
  GroupAction action;
  action.num_orbits = graph.num_vertices();
  action.orbit.resize(graph.num_vertices());
  std::iota(action.orbit.begin(), action.orbit.end(), 0);
  action.element.assign(graph.num_vertices(), 0);
  action.cls.resize(graph.num_arcs());
  std::iota(action.cls.begin(), action.cls.end(), 0);
  action.step.assign(graph.num_arcs(), 1);
  return action;
}

Amount GroupAction::difference(Amount a, Amount b) const {
  if (order == 1) return 0;
  Amount result = 0, place = 1;
  for (Amount n : radix) {
    Amount digit = a % n - b % n;
    result += (digit < 0 ? digit + n : digit) * place;
    a /= n, b /= n, place *= n;
  }
  return result;
}

}  // namespace coppice
