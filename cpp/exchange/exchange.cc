#include "exchange/exchange.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/wide.h"
#include "exchange/bundles.h"
#include "exchange/growth.h"
#include "exchange/mending.h"
#include "graph/chains.h"

namespace coppice {

namespace {

constexpr double kSteepness[] = {8, 20, 1.5, 1.1, 1.03};
constexpr double kLargeSteepness[] = {8, 2, 1.03};               // of problems that are not small
constexpr double kDrawnSteepness[] = {1, 1.1, 1.2, 1.35, 1.5};
constexpr int kRounds = 2;                                      // of growing all trees again
constexpr std::int64_t kFew = 500, kTooMany = 25;               // one place of so many is missing
constexpr std::int64_t kMendingWork = 500, kTryingWork = 20, kLoweringWork = 400, kLargeWork = 40;  // for each place
constexpr Amount kDrawnTrees = 128;                             // of a single root, up to which costs are drawn
constexpr std::int64_t kDrawnPlaces = 300'000, kDraws = 512;    // vertices of all trees that are grown so; times
constexpr std::int64_t kSmall = 20'000;                         // places up to which all ways of growing are tried

// Lowest first: largest height, sum of heights by weight, number of trees.
using Shape = std::tuple<std::int32_t, Wide, std::int32_t>;

Shape shape_of(const Bundles& bundles) {
  Wide sum = 0;
  for (std::int32_t b = 0; b < bundles.size(); ++b)
    sum += Wide{*std::max_element(bundles[b].depth.begin(), bundles[b].depth.end())} * bundles[b].weight;
  return {bundles.height(), sum, bundles.size()};
}

void grow_all(Bundles& bundles, Growth& growth, const StopFlag& stop) {
  for (std::int32_t b = 0; b < bundles.size(); ++b) {
    poll(stop);
    growth.grow(b);
  }
}

// Halves bundles that miss something, down to single trees. False: that makes it worse.
bool halve(Bundles& bundles, Growth& growth, const StopFlag& stop) {
  const std::int32_t most = 2 * bundles.size() + 64;
  for (bool split = true; split;) {
    split = false;
    for (std::int32_t b = 0, all = bundles.size(); b < all; ++b) {
      if (bundles[b].missing == 0 || bundles[b].weight == 1) continue;
      poll(stop);
      split = true;
      bundles.clear(b);
      bundles.split(b, (bundles[b].weight + 1) / 2);
      growth.grow(b);
      growth.grow(bundles.size() - 1);
    }
    if (bundles.size() > most) return false;
  }
  return true;
}

Packing packing_of(const Bundles& bundles, const Chains& chains) {
  Packing packing;
  packing.start.push_back(0);
  std::vector<std::int32_t> order(bundles.terminals().size());
  for (std::int32_t b = 0; b < bundles.size(); ++b) {
    const Bundle& tree = bundles[b];
    if (tree.missing > 0) continue;
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return tree.depth[i]; });
    for (std::int32_t i : order) {
      if (tree.via[i] < 0) continue;
      for (Arc e : bundles.path(tree.via[i])) {
        const auto arcs = chains.arcs(e);
        packing.arcs.insert(packing.arcs.end(), arcs.begin(), arcs.end());
      }
    }
    packing.root.push_back(tree.root);
    packing.multiplicity.push_back(tree.weight);
    packing.start.push_back(static_cast<std::int64_t>(packing.arcs.size()));
  }
  return packing;
}

// One way of growing, and all that mends it; whether nothing is missing. On large problems trees are grown once: where
// much is missing, growing them again does not make that less.
// Args:
//   before_mending: Called on large problems where something is missing, with the trees as they were grown.
bool pack(Bundles& bundles, std::span<const std::int32_t> lengths, double steepness, std::int32_t most_height, std::uint64_t seed,
          const std::function<void()>& before_mending, const StopFlag& stop) {
  const bool small = bundles.places() <= kSmall;
  const std::int32_t unlimited = static_cast<std::int32_t>(bundles.terminals().size());
  Growth growth(bundles, lengths, steepness, most_height > 0 ? most_height : unlimited, seed);
  grow_all(bundles, growth, stop);
  const std::int64_t missing = bundles.missing();
  if (!small && missing > 0) before_mending();
  if (!small && missing * kTooMany > bundles.places()) return false;
  for (int round = 0; small && round < kRounds && bundles.missing() * kFew > bundles.places(); ++round) grow_all(bundles, growth, stop);
  if (bundles.missing() > 0 && !halve(bundles, growth, stop)) return false;
  if (!small && bundles.missing() > 2 * missing) return false;
  if (bundles.missing() > 0) {
    const std::int32_t height = std::max(1, bundles.height());
    const std::int32_t first = most_height > 0 ? most_height : height;
    const std::int32_t highest = most_height > 0 ? most_height : std::min(unlimited, 2 * height + 2);
    const std::int64_t work = !small ? kLargeWork : seed == 0 ? kMendingWork : kTryingWork;
    Mending mending(bundles, first, work * bundles.places());
    if (!mending.mend(highest, stop)) return false;
  }
  bundles.join_equal();
  return true;
}

// Trees that are finished, as bundles: at each place of a path begins the one arc of the shorter graph that leads on.
Bundles bundles_of(const Packing& packing, const Chains& chains, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                   std::span<const Amount> capacity, Arc num_arcs) {
  std::vector<Arc> shorter(static_cast<std::size_t>(num_arcs), -1);
  for (Arc e = 0; e < chains.graph().num_arcs(); ++e) shorter[static_cast<std::size_t>(chains.arcs(e).front())] = e;
  Bundles bundles(chains.graph(), terminal, roots, capacity);
  std::vector<std::int32_t> rest(terminal.size(), Bundles::kNone);  // per root: the bundle that has the trees to come
  for (std::int32_t b = 0; b < bundles.size(); ++b) rest[static_cast<std::size_t>(bundles[b].root)] = b;
  std::vector<Arc> path;
  for (std::size_t t = 0; t < packing.root.size(); ++t) {
    std::int32_t& left = rest[static_cast<std::size_t>(packing.root[t])];
    const std::int32_t b = left;
    if (bundles[b].weight > packing.multiplicity[t]) {
      bundles.split(b, packing.multiplicity[t]);
      left = bundles.size() - 1;
    }
    path.clear();
    for (std::int64_t i = packing.start[t]; i < packing.start[t + 1];) {
      const Arc e = shorter[static_cast<std::size_t>(packing.arcs[static_cast<std::size_t>(i)])];
      path.push_back(e);
      i += static_cast<std::int64_t>(chains.arcs(e).size());
      const Vertex v = chains.graph().head(e);
      if (!bundles.is_terminal(v)) continue;
      bundles.hang(b, v, bundles.number(path));
      path.clear();
    }
  }
  return bundles;
}

// Hangs what is deepest somewhere else, as long as that succeeds: one level at a time, since exchanges seldom make up for
// many levels at once.
void lower(Bundles& bundles, const StopFlag& stop) {
  for (std::int32_t height; (height = bundles.height()) > 1;) {
    Bundles lower = bundles;
    lower.drop_below(height - 1);
    if (!Mending(lower, height - 1, kLoweringWork * bundles.places()).mend(height - 1, stop)) return;
    lower.join_equal();
    bundles = std::move(lower);
  }
}

}  // namespace

std::optional<Packing> pack_by_exchange(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                                        std::span<const Amount> capacity, std::int32_t most_height, Packing* begun, const StopFlag& stop) {
  require_below_limit(std::accumulate(roots.begin(), roots.end(), Wide{0}), "the number of trees must stay below 2^62");
  require_below_limit(std::accumulate(capacity.begin(), capacity.end(), Wide{0}), "the sum of the capacities must stay below 2^62");
  const Chains chains(graph, terminal);
  const std::vector<std::int32_t> lengths = chains.lengths();
  const std::vector<Amount> least = chains.least(capacity);
  std::optional<Packing> best;
  Shape shape;
  const bool small = Bundles(chains.graph(), terminal, roots, least).places() <= kSmall;
  std::int32_t most_complete = -1;
  for (double steepness : small ? std::span<const double>(kSteepness) : std::span<const double>(kLargeSteepness)) {
    Bundles bundles(chains.graph(), terminal, roots, least);
    const auto keep_grown = [&] {
      std::int32_t complete = 0;
      for (std::int32_t b = 0; b < bundles.size(); ++b) complete += bundles[b].missing == 0;
      if (!begun || complete <= most_complete) return;
      most_complete = complete;
      *begun = packing_of(bundles, chains);
    };
    if (!pack(bundles, lengths, steepness, most_height, 0, keep_grown, stop)) {
      if (begun && most_complete * kTooMany > bundles.size() * (kTooMany - 1)) break;  // little is left to do for others
      continue;
    }
    lower(bundles, stop);
    if (const Shape found = shape_of(bundles); !best || found < shape) {
      best = packing_of(bundles, chains);
      shape = found;
    }
    if (!small) break;
  }
  if (best || most_height <= 0) return best;
  const auto rooted = std::ranges::count_if(roots, [](Amount r) { return r > 0; });
  const Amount trees = *std::ranges::max_element(roots);
  if (rooted != 1 || trees > kDrawnTrees) return best;
  const std::int64_t draws = std::min(kDraws, kDrawnPlaces / (trees * static_cast<std::int64_t>(terminal.size())));
  for (std::int64_t draw = 1; draw <= draws; ++draw) {
    Bundles bundles(chains.graph(), terminal, roots, least);
    while (bundles[0].weight > 1) bundles.split(0, bundles[0].weight - 1);
    const double steepness = kDrawnSteepness[static_cast<std::size_t>(draw) % std::size(kDrawnSteepness)];
    if (!pack(bundles, lengths, steepness, most_height, static_cast<std::uint64_t>(draw), [] {}, stop)) continue;
    lower(bundles, stop);
    return packing_of(bundles, chains);
  }
  return best;
}

Packing lowered_by_exchange(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                            std::span<const Amount> capacity, const Packing& packing, const StopFlag& stop) {
  const Chains chains(graph, terminal);
  const std::vector<Amount> least = chains.least(capacity);
  Bundles bundles = bundles_of(packing, chains, terminal, roots, least, graph.num_arcs());
  lower(bundles, stop);
  return packing_of(bundles, chains);
}

}  // namespace coppice
