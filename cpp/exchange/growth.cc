#include "exchange/growth.h"

#include <algorithm>
#include <functional>

#include "core/hash.h"

namespace coppice {

static constexpr double kSteepest = 1e30;
static constexpr double kDrawn = 0x1p-55;  // 53 bits as 0 to 1/4
static constexpr double kStale = 1.01;  // a way that costs this much more than when it was offered waits its turn

Growth::Growth(Bundles& bundles, std::span<const std::int32_t> lengths, double steepness, std::int32_t most_height,
               std::uint64_t seed)
    : bundles_(bundles),
      graph_(bundles.graph()),
      lengths_(lengths),
      most_height_(most_height),
      seed_(seed),
      most_(1),
      order_(graph_.num_vertices(), 0),
      from_(graph_.num_vertices(), -1),
      stamp_of_(graph_.num_vertices(), 0),
      waiting_(graph_.num_vertices()),
      offered_(graph_.num_vertices(), 0) {
  for (Arc e = 0; e < graph_.num_arcs(); ++e) most_ = std::max(most_, static_cast<double>(bundles.capacity(e)));
  power_.assign(bundles.terminals().size() + 1, 1);
  for (std::size_t d = 1; d < power_.size(); ++d) power_[d] = std::min(power_[d - 1] * steepness, kSteepest);
}

double Growth::cost(Arc e) const {
  const double even = lengths_[e] * most_ / static_cast<double>(std::max<Amount>(bundles_.residual(e), 1));
  return seed_ ? even * (1 + static_cast<double>(mixed(tree_seed_, static_cast<std::uint64_t>(e)) >> 11) * kDrawn) : even;
}

Growth::Way Growth::extended(const Way& way, Arc e) const {
  const double whole = way.cost + cost(e);
  return {whole, way.depth, whole * power_[way.depth]};
}

void Growth::push(const Candidate& candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

// Offers the arcs out of a terminal of the tree.
void Growth::offer_arcs_from(const Bundle& tree, Vertex v) {
  const Way start{0, tree.depth[bundles_.index(v)], 0};
  if (start.depth >= most_height_) return;
  for (Arc e : graph_.out(v)) {
    const Vertex to = graph_.head(e);
    if (bundles_.residual(e) < tree.weight || bundles_.reaches(tree, to)) continue;
    const double order = extended(start, e).order;
    if (stamp_of_[to] == stamp_ && order_[to] <= order) continue;
    stamp_of_[to] = stamp_;
    from_[to] = e;
    order_[to] = order;
    push({order, to, -1});
  }
}

// Offers the arcs out of a switch to which there is a way, one after the other.
void Growth::open(const Bundle& tree, Vertex v, const Way& way) {
  auto& waiting = waiting_[v];
  waiting.clear();
  for (Arc e : graph_.out(v))
    if (bundles_.residual(e) >= tree.weight && !bundles_.reaches(tree, graph_.head(e))) waiting.push_back({cost(e), e});
  std::make_heap(waiting.begin(), waiting.end(), std::greater<>());
  offer_next(tree, v, way);
}

// The cheapest arc that is waiting at a switch and leads to something new; -1: there is none.
Arc Growth::next_arc(const Bundle& tree, Vertex v, const Way& way) {
  auto& waiting = waiting_[v];
  while (!waiting.empty()) {
    const auto [known, e] = waiting.front();
    const Vertex to = graph_.head(e);
    const bool usable = bundles_.residual(e) >= tree.weight && !bundles_.reaches(tree, to);
    const bool better = usable && (stamp_of_[to] != stamp_ || extended(way, e).order < order_[to]);
    if (better && cost(e) <= known) return e;
    std::pop_heap(waiting.begin(), waiting.end(), std::greater<>());
    waiting.pop_back();
    if (!better) continue;
    waiting.push_back({cost(e), e});
    std::push_heap(waiting.begin(), waiting.end(), std::greater<>());
  }
  return -1;
}

void Growth::offer_next(const Bundle& tree, Vertex v, const Way& way) {
  if (way.depth >= most_height_) return;
  const Arc e = next_arc(tree, v, way);
  if (e < 0) return;
  offered_[v] = extended(way, e).order;
  push({offered_[v], graph_.head(e), v});
}

// Goes on over the next arc out of a switch, which was offered at `order`.
void Growth::take_next(std::int32_t b, Vertex v, double order) {
  const Bundle& tree = bundles_[b];
  if (stamp_of_[v] != stamp_ || offered_[v] != order) return;
  Way way;
  Vertex broken;
  if (!trace(tree, v, way, broken, -1) && !mend(tree, v, way)) return;
  const Arc e = way.depth < most_height_ ? next_arc(tree, v, way) : -1;
  if (e >= 0 && extended(way, e).order <= order * kStale) {
    const Vertex to = graph_.head(e);
    const Way on = extended(way, e);
    stamp_of_[to] = stamp_;
    from_[to] = e;
    order_[to] = on.order;
    arrive(b, to, on);
  }
  offer_next(tree, v, way);
}

// Hangs a terminal to its way, or goes on from a switch.
void Growth::arrive(std::int32_t b, Vertex v, const Way& way) {
  const Bundle& tree = bundles_[b];
  if (!bundles_.is_terminal(v)) return open(tree, v, way);
  path_.clear();
  for (Vertex y = v; !bundles_.reaches(tree, y); y = graph_.tail(from_[y])) path_.push_back(from_[y]);
  std::reverse(path_.begin(), path_.end());
  bundles_.hang(b, v, bundles_.number(path_));
  offer_arcs_from(tree, v);
}

// Follows the way to v back to the tree. False where it does not hold: then `broken` is the vertex on it, the nearest
// to the tree, that needs another way in. A way through `without` does not hold.
bool Growth::trace(const Bundle& tree, Vertex v, Way& way, Vertex& broken, Vertex without) const {
  Vertex child = v;
  broken = -1;
  double whole = 0;
  Vertex steps = 0;
  while (!bundles_.reaches(tree, v)) {
    if (v == without || stamp_of_[v] != stamp_ || ++steps > graph_.num_vertices()) return broken = child, false;
    const Arc e = from_[v];
    if (bundles_.residual(e) < tree.weight) broken = v;
    whole += cost(e);
    child = v;
    v = graph_.tail(e);
  }
  const std::int32_t depth = tree.depth[bundles_.index(v)];
  way = {whole, depth, whole * power_[depth]};
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
  tree_seed_ = mixed(seed_, static_cast<std::uint64_t>(b));
  ++stamp_;
  heap_.clear();
  offer_arcs_from(tree, tree.root);
  while (!heap_.empty() && tree.missing > 0) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [order, v, by] = heap_.back();
    heap_.pop_back();
    if (by >= 0) {
      take_next(b, by, order);
      continue;
    }
    if (bundles_.reaches(tree, v) || stamp_of_[v] != stamp_ || order_[v] < order) continue;
    Way way;
    Vertex broken;
    if (!trace(tree, v, way, broken, -1) && !mend(tree, v, way)) continue;
    order_[v] = way.order;
    if (order * kStale < way.order) {
      push({way.order, v, -1});
    } else {
      arrive(b, v, way);
    }
  }
}

}  // namespace coppice
