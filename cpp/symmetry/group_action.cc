#include "symmetry/group_action.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "core/wide.h"

namespace coppice {

GroupAction GroupAction::trivial(const Digraph& graph) {
  GroupAction action;
  action.num_orbits = graph.num_vertices();
  action.orbit.resize(graph.num_vertices());
  std::iota(action.orbit.begin(), action.orbit.end(), 0);
  action.element.assign(graph.num_vertices(), 0);
  action.arc_class.resize(graph.num_arcs());
  std::iota(action.arc_class.begin(), action.arc_class.end(), 0);
  action.images_per_arc.assign(graph.num_arcs(), 1);
  return action;
}

GroupAction GroupAction::of(std::span<const Amount> orders, std::span<const std::int32_t> vertex_orbit,
                            std::span<const Amount> vertex_element, std::span<const std::int32_t> arc_orbit) {
  auto negative = [](std::int32_t orbit) { return orbit < 0; };
  if (std::any_of(vertex_orbit.begin(), vertex_orbit.end(), negative) || std::any_of(arc_orbit.begin(), arc_orbit.end(), negative))
    throw std::invalid_argument("orbit numbers must be 0 or more");
  GroupAction action;
  action.radix.assign(orders.begin(), orders.end());
  for (Amount n : orders) {
    if (n < 1) throw std::invalid_argument("orders must be 1 or more");
    require_below_limit(Wide{action.order} * n, "the order of the group must stay below 2^62");
    action.order *= n;
  }
  action.orbit.assign(vertex_orbit.begin(), vertex_orbit.end());
  action.element.assign(vertex_element.begin(), vertex_element.end());
  action.arc_class.assign(arc_orbit.begin(), arc_orbit.end());
  for (std::int32_t o : vertex_orbit) action.num_orbits = std::max(action.num_orbits, o + 1);
  std::vector<Amount> members;
  for (std::int32_t c : arc_orbit) {
    if (c >= static_cast<std::int32_t>(members.size())) members.resize(c + 1, 0);
    ++members[c];
  }
  for (Amount count : members) action.images_per_arc.push_back(count > 0 ? action.order / count : action.order);
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
