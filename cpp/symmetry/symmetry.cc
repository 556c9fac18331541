#include "symmetry/symmetry.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "symmetry/abelian.h"
#include "core/budget.h"
#include "symmetry/hubs.h"
#include "symmetry/refinement.h"
#include "symmetry/translations.h"

namespace coppice {

namespace {

// Up to this size a group that falls short of the bound is compared with the one that translations alone give.
constexpr std::int64_t kSmallGraph = 20'000;

FreeAbelianGroup solve(ColouredGraph graph, const StopFlag& stop) {
  Budget unlimited(std::numeric_limits<std::int64_t>::max(), stop);
  Refinement refinement(graph, {}, 1);
  refinement.start(graph.colour, false);
  refinement.refine(unlimited);
  graph.colour = refinement.cells(0);
  std::int64_t bound = 0;  // all orbits of compute vertices have the same size and lie in one cell each
  for (Vertex v = 0; v < graph.graph.num_vertices(); ++v)
    if (graph.compute[v]) bound = std::gcd<std::int64_t>(bound, refinement.cell_size(graph.colour[v]));
  if (bound <= 1) return FreeAbelianGroup(graph.compute);
  auto reduction = reduce_by_hubs(graph, unlimited);
  if (!reduction) return find_translations(graph, bound, stop);
  FreeAbelianGroup inner = solve(reduction->quotient, stop);
  std::vector<VertexMap> generators{reduction->shift};
  std::vector<std::int64_t> orders{reduction->order};
  for (std::size_t i = 0; i < inner.generators().size(); ++i) {
    generators.push_back(reduction->lifted(inner.generators()[i]));
    orders.push_back(inner.orders()[i]);
  }
  FreeAbelianGroup group(graph.compute, std::move(generators), std::move(orders));
  if (group.order() < bound && graph.graph.num_vertices() + graph.graph.num_arcs() <= kSmallGraph) {
    FreeAbelianGroup other = find_translations(graph, bound, stop);
    if (other.order() > group.order()) return other;
  }
  return group;
}

/// Arcs by (tail, head).
class ArcIndex {
 public:
  explicit ArcIndex(const Digraph& graph) : graph_(graph), arcs_(graph.num_arcs()) {
    std::iota(arcs_.begin(), arcs_.end(), 0);
    std::sort(arcs_.begin(), arcs_.end(), [&](Arc a, Arc b) { return ends(a) < ends(b); });
    for (Arc i = 0; i + 1 < graph.num_arcs(); ++i)
      if (ends(arcs_[i]) == ends(arcs_[i + 1]))
        throw std::invalid_argument("arcs " + std::to_string(arcs_[i]) + " and " + std::to_string(arcs_[i + 1]) +
                                    " are parallel: merge them");
  }

  /// The arc that is known to join these vertices.
  Arc operator()(Vertex tail, Vertex head) const {
    return *std::lower_bound(arcs_.begin(), arcs_.end(), std::pair(tail, head),
                             [&](Arc e, const std::pair<Vertex, Vertex>& key) { return ends(e) < key; });
  }

 private:
  std::pair<Vertex, Vertex> ends(Arc e) const { return {graph_.tail(e), graph_.head(e)}; }

  const Digraph& graph_;
  std::vector<Arc> arcs_;
};

void find_link_orbits(const Digraph& graph, const ArcIndex& index, Symmetry& symmetry) {
  std::vector<Arc> parent(graph.num_arcs());  // a forest whose roots are the least arcs of their orbits
  std::iota(parent.begin(), parent.end(), 0);
  auto root = [&](Arc e) {
    while (parent[e] != e) e = parent[e] = parent[parent[e]];
    return e;
  };
  for (const VertexMap& generator : symmetry.generators)
    for (Arc e = 0; e < graph.num_arcs(); ++e) {
      Arc a = root(e), b = root(index(generator[graph.tail(e)], generator[graph.head(e)]));
      parent[std::max(a, b)] = std::min(a, b);
    }
  symmetry.link_orbit.resize(graph.num_arcs());
  std::vector<std::int64_t> size;
  for (Arc e = 0; e < graph.num_arcs(); ++e) {
    if (root(e) == e) {
      symmetry.link_orbit[e] = static_cast<std::int32_t>(size.size());
      size.push_back(0);
    } else {
      symmetry.link_orbit[e] = symmetry.link_orbit[root(e)];
    }
    ++size[symmetry.link_orbit[e]];
  }
  for (std::int32_t orbit : symmetry.link_orbit) symmetry.link_orbit_size.push_back(size[orbit]);
}

}  // namespace

Symmetry find_symmetry(const Digraph& graph, std::span<const std::int32_t> colour, std::span<const std::int32_t> label,
                       std::span<const std::uint8_t> compute, const StopFlag& stop) {
  auto n = static_cast<std::size_t>(graph.num_vertices()), m = static_cast<std::size_t>(graph.num_arcs());
  if (colour.size() != n || compute.size() != n || label.size() != m)
    throw std::invalid_argument("symmetry needs a colour and a compute flag per vertex and a label per arc");
  auto outside = [](std::int32_t value) { return value < 0 || value >= 1 << 30; };
  if (std::any_of(colour.begin(), colour.end(), outside) || std::any_of(label.begin(), label.end(), outside))
    throw std::invalid_argument("symmetry needs colours and labels in 0 .. 2^30 - 1");
  ArcIndex index(graph);
  // Compute vertices are told from others even where the caller's colours do not.
  ColouredGraph coloured{graph, {}, {label.begin(), label.end()}, {compute.begin(), compute.end()}};
  for (std::size_t v = 0; v < n; ++v) coloured.colour.push_back(colour[v] * 2 + (compute[v] ? 1 : 0));
  FreeAbelianGroup group = solve(std::move(coloured), stop);
  Symmetry result;
  result.orders = group.orders();
  result.generators = group.generators();
  for (Vertex v = 0; v < graph.num_vertices(); ++v) {
    result.node_orbit.push_back(group.orbit(v));
    result.node_element.push_back(group.element(v));
  }
  find_link_orbits(graph, index, result);
  return result;
}

}  // namespace coppice
