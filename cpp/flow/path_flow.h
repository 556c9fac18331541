// Many demands routed at once so that the busiest arc carries as little as possible: a flow kept as paths.
//
// Theory. Let u(e) = load(e) / capacity(e) and U the largest. The soft maximum (1 / s) log sum exp(s u(e)) is convex in
// the flow and at most log(arcs) / s above U. Its gradient, w(e) ~ exp(s u(e)) / capacity(e), is a length of arcs: a
// flow whose paths are all shortest under w is the best for this s, and by duality no flow has a largest u below
//
//     sum of demand(a, b) * distance_w(a, b) / sum of w(e) capacity(e),    for any lengths w.
//
// A sweep takes the sources in turn: distances under the present lengths, then for each target flow is moved from every
// longer path to the shortest one, as far as the soft maximum falls (Newton's method in one dimension, on the arcs in
// which the two differ); lengths follow at once. This is the projection of gradients by origins of traffic assignment
// (Jayakrishnan et al., 1994) on the potential of Shahrokhi and Matula (1990). Figures here are floats and prove
// nothing: who needs a proof rounds the paths and the lengths, and counts.
//
// Cost of a sweep: a Dijkstra search per source and, for each pair with demand, its paths; memory: the paths.
// Overflow: exponents are kept within -30 .. 30.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// The paths of a flow, by source and target.
struct FlowPaths {
  std::vector<std::int32_t> source;  // per path, its number among the sources
  std::vector<Vertex> target;        // per path
  std::vector<double> part;          // per path: the share of the demand that it carries
  std::vector<std::int64_t> start;   // path i has the arcs arc[start[i]] .. arc[start[i + 1]]
  std::vector<Arc> arc;
};

class PathFlow {
 public:
  /// Args:
  ///   graph: Kept by value. Every target must be reachable.
  ///   capacity: Per arc, > 0.
  ///   sources: Vertices.
  ///   demand: demand[i * num_vertices + v] from sources[i] to vertex v, >= 0; what a source asks of itself is ignored.
  /// Throws std::invalid_argument where columns have wrong lengths or a capacity is not positive.
  PathFlow(Digraph graph, std::span<const Amount> capacity, std::span<const Vertex> sources, std::span<const Amount> demand);

  /// One sweep; the first lays all demands on paths. `steepness` is s times the largest u.
  /// Throws std::invalid_argument where a demand has no path.
  void sweep(double steepness, const StopFlag& stop = {});

  /// The largest load over capacity of an arc.
  double worst() const;

  /// The lengths w for this steepness, largest 1.
  std::vector<double> lengths(double steepness) const;

  /// No flow has a largest load over capacity below this, by these lengths, up to rounding.
  double bound(std::span<const double> length, const StopFlag& stop = {}) const;

  FlowPaths paths() const;

 private:
  struct Path {
    Vertex target;
    double amount;
    std::int32_t first, last;  // its arcs, in a pool
  };
  struct Routes {  // of one source, by target
    std::vector<Path> paths;
    std::vector<Arc> pool;
  };

  void search(Vertex source, std::span<const double> length, std::vector<double>& distance, std::vector<Arc>& last) const;
  void improve(std::size_t source, double scale);
  void shift(std::span<const Arc> from, std::span<const Arc> to, double most, double scale, double& moved);
  void relength(Arc e, double scale);

  Digraph graph_;
  std::vector<double> capacity_;
  std::vector<Vertex> sources_;
  std::vector<Amount> demand_;
  std::vector<Routes> routes_;
  std::vector<double> load_;
  std::vector<double> length_;
  std::vector<std::int32_t> mark_;
  double top_ = 0;  // the largest u when lengths were last made
};

}  // namespace coppice
