#include "packing/portfolio.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "cuts/feasibility.h"
#include "exchange/exchange.h"
#include "packing/shortening.h"

namespace coppice {

namespace {

constexpr std::int64_t kSmall = 200'000;  // arcs of all trees up to which a second packing costs little
constexpr Amount kFewUnits = 128;         // of a single root, up to which each may be a tree of its own
constexpr std::int64_t kSlow = 2'000;     // terminals times roots from which trees are not packed one by one first

struct Shape {
  std::int32_t height = 0;
  double mean_height = 0;  // a preference, not a proof: ties at the last digit do not matter
  std::size_t trees = 0;
  auto operator<=>(const Shape&) const = default;
};

Shape shape_of(const Digraph& graph, std::span<const std::uint8_t> terminal, const Packing& packing) {
  Shape shape;
  shape.trees = packing.root.size();
  std::vector<std::int32_t> depth(graph.num_vertices(), 0);
  double sum = 0, weight = 0;
  for (std::size_t t = 0; t < packing.root.size(); ++t) {
    std::span<const Arc> arcs(packing.arcs.data() + packing.start[t], packing.arcs.data() + packing.start[t + 1]);
    TreeDepth tree = tree_depth(graph, terminal, packing.root[t], arcs, depth);
    shape.height = std::max(shape.height, tree.height);
    sum += static_cast<double>(tree.height) * static_cast<double>(packing.multiplicity[t]);
    weight += static_cast<double>(packing.multiplicity[t]);
  }
  shape.mean_height = weight > 0 ? sum / weight : 0;
  return shape;
}

// Hops between terminals that the farthest terminal is from a root: no packing is lower.
std::int32_t least_height(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots) {
  std::int32_t least = 0;
  for (Vertex root = 0; root < graph.num_vertices(); ++root) {
    if (roots[root] == 0) continue;
    std::vector<std::uint8_t> seen(graph.num_vertices(), 0);
    std::vector<Vertex> now{root}, next;
    seen[root] = 1;
    for (std::int32_t hops = 0; !now.empty(); ++hops) {
      least = std::max(least, hops);
      next.clear();
      for (std::size_t i = 0; i < now.size(); ++i) {  // switches join the terminals of this hop
        for (Arc e : graph.out(now[i])) {
          const Vertex to = graph.head(e);
          if (seen[to]) continue;
          seen[to] = 1;
          (terminal[to] ? next : now).push_back(to);
        }
      }
      now.swap(next);
    }
  }
  return least;
}

}  // namespace

Packing pack_best(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                  std::span<const Amount> capacity, const GroupAction& action, const PackingOptions& options, const StopFlag& stop) {
  // Where switches have more out than in, one way may find no packing and another one still.
  auto packed_in = [&](Amount pieces) -> std::optional<Packing> {
    PackingOptions variant = options;
    variant.pieces = pieces;
    try {
      return pack_trees(graph, terminal, roots, capacity, action, variant, stop);
    } catch (const NoPacking&) {
      return std::nullopt;
    }
  };
  // Whether the cut condition (I) holds: searching for what cannot be would be long.
  auto possible = [&] {
    FeasibilityCheck<Amount> check(graph, terminal);
    const Amount trees = std::accumulate(roots.begin(), roots.end(), Amount{0});
    return check.violated(capacity, roots, trees, 1, stop).empty();
  };
  const bool exchange = action.order == 1 && !options.always_exhaustive && options.most_checks != 0;
  const auto rooted = std::count_if(roots.begin(), roots.end(), [](Amount r) { return r > 0; });
  const auto spanned = std::count_if(terminal.begin(), terminal.end(), [](auto t) { return t != 0; });
  if (exchange && rooted * spanned > kSlow && possible()) {
    Packing begun;
    if (auto found = pack_by_exchange(graph, terminal, roots, capacity, 0, &begun, stop)) return *std::move(found);
    if (!begun.root.empty()) {
      PackingOptions variant = options;
      variant.begun = &begun;
      return pack_trees(graph, terminal, roots, capacity, action, variant, stop);
    }
  }
  const Amount most = *std::max_element(roots.begin(), roots.end());
  std::optional<Packing> best = packed_in(1);
  const PackingStats stats = best ? best->stats : PackingStats{};
  const bool large = best && best->complete && (best->stats.flows > 0 || static_cast<std::int64_t>(best->arcs.size()) > kSmall);
  auto try_pieces = [&](Amount pieces) {
    std::optional<Packing> found = packed_in(pieces);
    if (!best || (found && found->complete &&
                  (!best->complete || shape_of(graph, terminal, *found) < shape_of(graph, terminal, *best))))
      best = std::move(found);
  };
  if (most > 1 && !large) try_pieces(2);
  if (rooted == 1 && most > 2 && most <= kFewUnits && !large) try_pieces(most);
  if (!best) throw NoPacking{};
  if (exchange && best->complete && rooted * spanned <= kSlow) {
    Shape shape = shape_of(graph, terminal, *best);
    auto take_if_better = [&](std::optional<Packing> found) {
      if (!found) return false;
      const Shape other = shape_of(graph, terminal, *found);
      if (other < shape) best = std::move(found), shape = other;
      return true;
    };
    take_if_better(pack_by_exchange(graph, terminal, roots, capacity, 0, nullptr, stop));
    take_if_better(lowered_by_exchange(graph, terminal, roots, capacity, *best, stop));
    const std::int32_t least = least_height(graph, terminal, roots);
    while (shape.height > least && take_if_better(pack_by_exchange(graph, terminal, roots, capacity, shape.height - 1, nullptr, stop))) {
    }
  }
  best->stats = stats;
  return *std::move(best);
}

}  // namespace coppice
