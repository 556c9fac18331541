#include "exchange/growth.h"

#include <algorithm>
#include <functional>

namespace coppice {

static constexpr double kSteepest = 1e30;
static constexpr double kStale = 1.01;  // a way that costs this much more than when it was offered waits its turn

Growth::Growth(Bundles& bundles, double steepness, std::int32_t most_height)
    : bundles_(bundles),
      graph_(bundles.graph()),
      most_height_(most_height),
      most_(1),
      order_(graph_.num_vertices(), 0),
      from_(graph_.num_vertices(), -1),
      stamp_of_(graph_.num_vertices(), 0) {
  for (Arc e = 0; e < graph_.num_arcs(); ++e) most_ = std::max(most_, static_cast<double>(bundles.capacity(e)));
  power_.assign(bundles.terminals().size() + 1, 1);
  for (std::size_t d = 1; d < power_.size(); ++d) power_[d] = std::min(power_[d - 1] * steepness, kSteepest);
}

Growth::Way Growth::extended(const Way& way, Arc e) const {
  const double cost = way.cost + most_ / static_cast<double>(std::max<Amount>(bundles_.residual(e), 1));
  return {cost, way.depth, cost * power_[way.depth]};
}

void Growth::push(double order, Vertex v) {
  heap_.push_back({order, v});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void Growth::offer_arcs_from(const Bundle& tree, Vertex v, const Way& way) {
  if (way.depth >= most_height_) return;
  for (Arc e : graph_.out(v)) {
    const Vertex to = graph_.head(e);
    if (bundles_.residual(e) < tree.weight || bundles_.reaches(tree, to)) continue;
    const double order = extended(way, e).order;
    if (stamp_of_[to] == stamp_ && order_[to] <= order) continue;
    stamp_of_[to] = stamp_;
    from_[to] = e;
    order_[to] = order;
    push(order, to);
  }
}

// Follows the way to v back to the tree. False where it does not hold: then `broken` is the vertex on it, the nearest
// to the tree, that needs another way in. A way through `without` does not hold.
bool Growth::trace(const Bundle& tree, Vertex v, Way& way, Vertex& broken, Vertex without) const {
  Vertex child = v;
  broken = -1;
  double cost = 0;
  Vertex steps = 0;
  while (!bundles_.reaches(tree, v)) {
    if (v == without || stamp_of_[v] != stamp_ || ++steps > graph_.num_vertices()) return broken = child, false;
    const Arc e = from_[v];
    if (bundles_.residual(e) < tree.weight) broken = v;
    cost += most_ / static_cast<double>(std::max<Amount>(bundles_.residual(e), 1));
    child = v;
    v = graph_.tail(e);
  }
  const std::int32_t depth = tree.depth[bundles_.index(v)];
  way = {cost, depth, cost * power_[depth]};
  return broken < 0;
}

// Gives the way to v, which does not hold, other arcs. False: there is none.
bool Growth::mend(const Bundle& tree, Vertex v, Way& way) {
  Vertex broken, unused;
  while (!trace(tree, v, way, broken, -1)) {
    Arc best = -1;
    double best_order = 0;
    for (Arc e : graph_.in(broken)) {
      const Vertex from = graph_.tail(e);
      if (bundles_.residual(e) < tree.weight) continue;
      Way start;
      if (bundles_.reaches(tree, from)) {
        start.depth = tree.depth[bundles_.index(from)];
      } else if (bundles_.is_terminal(from) || stamp_of_[from] != stamp_ || !trace(tree, from, start, unused, broken)) {
        continue;
      }
      if (start.depth >= most_height_) continue;
      const double order = extended(start, e).order;
      if (best < 0 || order < best_order) best = e, best_order = order;
    }
    if (best >= 0) {
      from_[broken] = best;
      order_[broken] = best_order;  // costs only rise while a tree grows, so no way can be offered to its own beginning
    } else {
      stamp_of_[broken] = 0;
      if (broken == v) return false;
    }
  }
  return true;
}

void Growth::grow(std::int32_t b) {
  bundles_.clear(b);
  const Bundle& tree = bundles_[b];
  ++stamp_;
  heap_.clear();
  offer_arcs_from(tree, tree.root, {});
  while (!heap_.empty() && tree.missing > 0) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [order, v] = heap_.back();
    heap_.pop_back();
    if (bundles_.reaches(tree, v) || stamp_of_[v] != stamp_ || order_[v] < order) continue;
    Way way;
    Vertex broken;
    if (!trace(tree, v, way, broken, -1) && !mend(tree, v, way)) continue;
    order_[v] = way.order;
    if (order * kStale < way.order) {
      push(way.order, v);
    } else if (bundles_.is_terminal(v)) {
      path_.clear();
      for (Vertex y = v; !bundles_.reaches(tree, y); y = graph_.tail(from_[y])) path_.push_back(from_[y]);
      std::reverse(path_.begin(), path_.end());
      bundles_.hang(b, v, bundles_.number(path_));
      offer_arcs_from(tree, v, {0, tree.depth[bundles_.index(v)], 0});
    } else {
      offer_arcs_from(tree, v, way);
    }
  }
}

}  // namespace coppice
