// A group of automorphisms that acts freely on the terminals of a graph, as tables.
//
// With it a tree stands for all its images: using an arc once means using every arc of its orbit, each
// |group| / |orbit| times. So capacities live on arc *classes* (orbits), and one use of a class costs
// `images_per_arc[class]` units of capacity on each of its arcs. The trivial group (every class one arc, every cost 1)
// is the ordinary case, which lets one packer serve both.
//
// Cost: tables are made in O(vertices + arcs); a difference of elements takes one step per cyclic factor. Overflow: the
// order of the group is checked against 2^62 where the tables are made; elements are below it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

struct GroupAction {
  Amount order = 1;                  // number of group elements
  std::vector<Amount> radix;         // the group is Z_radix[0] x Z_radix[1] x ..., elements in mixed radix
  std::vector<std::int32_t> orbit;   // orbit[v] of each vertex
  std::vector<Amount> element;       // element[v]: a group element that maps the orbit's first vertex to v
  std::vector<std::int32_t> arc_class;     // arc_class[e]: class (orbit) of arc e
  std::vector<Amount> images_per_arc;   // images_per_arc[c] = order / number of arcs in class c
  std::int32_t num_orbits = 0;

  static GroupAction trivial(const Digraph& graph);
  /// Args: orders of the cyclic factors; orbit and element of each vertex; orbit of each arc.
  /// Throws std::invalid_argument where an order is below 1 or an orbit is negative, std::overflow_error where the group
  /// has 2^62 elements or more.
  static GroupAction of(std::span<const Amount> orders, std::span<const std::int32_t> vertex_orbit,
                        std::span<const Amount> vertex_element, std::span<const std::int32_t> arc_orbit);

  std::int32_t num_classes() const { return static_cast<std::int32_t>(images_per_arc.size()); }

  /// The element x with x + b = a.
  Amount difference(Amount a, Amount b) const;
};

}  // namespace coppice
