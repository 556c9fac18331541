#include "rehanging/rehanging.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

namespace coppice {

namespace {

constexpr std::size_t kMostEntries = 64;  // ranks of a subtree that are tried as its new top
constexpr int kMostMisses = 256;          // subtrees without a place after which a crowded link is given up
constexpr int kMostAlike = 16;            // subtrees between the same two ranks after which no more of these are tried
constexpr std::size_t kMostSplits = 64;   // trees that are split before an attempt is given up
constexpr double kCrowding = 16.0;        // how many times as much a link without room costs
constexpr double kDeeper = 0.25;          // what every hop above a new parent costs, as a share of the dearest link
constexpr std::int64_t kDetoured = 5;     // nodes of a path that a detour serves: the middle one is replaced
constexpr double kInfinite = std::numeric_limits<double>::infinity();

template <class Item>
using Heap = std::priority_queue<Item, std::vector<Item>, std::greater<Item>>;

}  // namespace

Rehanging::Rehanging(const Damage& damage, Limits limits)
    : damage_(damage), limits_(std::move(limits)), room_(limits_.limit),
      edge_path_(damage.forest.edge_path.begin(), damage.forest.edge_path.end()),
      first_new_(static_cast<std::int32_t>(damage.forest.path_start.size()) - 1) {
  for (std::size_t e = 0; e < room_.size(); ++e) room_[e] -= limits_.scale * damage.load[e];
  auto cost = damage.network.cost;
  const double dearest = cost.empty() ? 0.0 : *std::ranges::max_element(cost);
  deeper_ = limits_.low ? kDeeper * dearest : 0.0;
  ahead_[0] = cost_ahead(false);
  ahead_[1] = cost_ahead(true);
  const auto nodes = static_cast<std::size_t>(damage.network.num_nodes);
  for (auto* stamps : {&seen_, &done_, &below_}) stamps->assign(nodes, 0);
  best_.resize(nodes);
  for (auto* column : {&origin_, &first_kid_, &next_kid_}) column->resize(nodes);
}

bool Rehanging::run(const StopFlag& stop) {
  Rows broken = detour(damage_.broken, -1);
  for (const auto& [link, rows] : crowded()) detour(rows, link);
  if (!rehang_broken(broken, stop)) return false;
  for (const auto& [link, rows] : crowded())
    if (!rehang_crowded(rows, link, stop)) return false;
  return true;
}

std::size_t Rehanging::num_rerouted() const {
  return static_cast<std::size_t>(std::ranges::count_if(rerouted_, [&](std::int32_t t) { return !moved_.contains(t); }));
}

/// Rows over every link that carries too much, as the forest was.
std::vector<std::pair<Arc, Rehanging::Rows>> Rehanging::crowded() const {
  std::vector<std::uint8_t> wanted(room_.size());
  std::vector<std::pair<Arc, Rows>> found;
  for (std::size_t e = 0; e < room_.size(); ++e) wanted[e] = room_[e] < 0;
  if (std::ranges::find(wanted, 1) == wanted.end()) return found;
  auto rows = damage_.rows_over(wanted);
  for (std::size_t e = 0; e < room_.size(); ++e)
    if (wanted[e]) found.emplace_back(static_cast<Arc>(e), std::move(rows[e]));
  return found;
}

// Paths.

std::span<const Vertex> Rehanging::path(std::int32_t number) const {
  if (number < 0) return {};
  if (number >= first_new_) return new_paths_[number - first_new_];
  const ForestColumns& forest = damage_.forest;
  return forest.path_nodes.subspan(forest.path_start[number], forest.path_start[number + 1] - forest.path_start[number]);
}

/// Links of a path; those that are gone are left out.
std::vector<Arc> Rehanging::links_of(std::span<const Vertex> nodes) const {
  std::vector<Arc> found;
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i)
    if (Arc link = damage_.links(nodes[i], nodes[i + 1]); link >= 0) found.push_back(link);
  return found;
}

bool Rehanging::uses(std::int32_t number, Arc link) const {
  auto nodes = path(number);
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i)
    if (damage_.links(nodes[i], nodes[i + 1]) == link) return true;
  return false;
}

void Rehanging::use_path(std::int32_t number, Amount units) {
  auto nodes = path(number);
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i)
    if (Arc link = damage_.links(nodes[i], nodes[i + 1]); link >= 0) room_[link] -= units;
}

std::int32_t Rehanging::add_path(std::vector<Vertex> nodes) {
  new_paths_.push_back(std::move(nodes));
  return first_new_ + static_cast<std::int32_t>(new_paths_.size()) - 1;
}

double Rehanging::price(Arc link) const {
  const double cost = damage_.network.cost[link];
  if (room_[link] >= 1) return cost;
  return cost * (1 + kCrowding * (1 - static_cast<double>(room_[link]) / static_cast<double>(limits_.limit[link] + 1)));
}

std::span<const Arc> Rehanging::around(Vertex node, bool backwards) const {
  return backwards ? damage_.graph.in(node) : damage_.graph.out(node);
}

/// Least cost from each node's nearest rank, along links or against them.
std::vector<double> Rehanging::cost_ahead(bool backwards) const {
  auto rank = damage_.network.rank;
  std::vector<double> least(rank.size(), kInfinite);
  Heap<std::pair<double, Vertex>> heap;
  for (std::size_t v = 0; v < rank.size(); ++v)
    if (rank[v] >= 0) least[v] = 0.0, heap.emplace(0.0, static_cast<Vertex>(v));
  while (!heap.empty()) {
    auto [paid, node] = heap.top();
    heap.pop();
    if (paid > least[node]) continue;
    for (Arc e : around(node, backwards)) {
      const Vertex other = backwards ? damage_.graph.tail(e) : damage_.graph.head(e);
      const double there = paid + damage_.network.cost[e];
      if (there < least[other]) least[other] = there, heap.emplace(there, other);
    }
  }
  return least;
}

// Detours.

/// Gives rows another middle switch where one has room; the rows that still have to move.
Rehanging::Rows Rehanging::detour(const Rows& rows, Arc crowded) {
  struct Way {
    Vertex node;
    Arc into, out;
  };
  const ForestColumns& forest = damage_.forest;
  auto rank = damage_.network.rank;
  std::map<std::pair<Vertex, Vertex>, std::vector<Way>> known;
  Rows left, fitting;
  for (std::int64_t row : rows) {
    const std::int32_t p = forest.edge_path[row];
    const std::int64_t at = p < 0 ? 0 : forest.path_start[p];
    bool fits = p >= 0 && forest.path_start[p + 1] - at == kDetoured && damage_.hop(at) >= 0 && damage_.hop(at + 3) >= 0;
    if (fits && crowded >= 0) fits = damage_.hop(at + 1) == crowded || damage_.hop(at + 2) == crowded;
    (fits ? fitting : left).push_back(row);
  }
  for (std::int64_t row : fitting) {
    if (crowded >= 0 && room_[crowded] >= 0) break;
    const std::int64_t at = forest.path_start[forest.edge_path[row]];
    const Vertex a = forest.path_nodes[at + 1], middle = forest.path_nodes[at + 2], b = forest.path_nodes[at + 3];
    const auto number = static_cast<std::int32_t>(
        std::ranges::upper_bound(forest.tree_start, row) - forest.tree_start.begin() - 1);
    const Amount weight = forest.tree_weight[number] * limits_.scale;
    auto [known_at, is_new] = known.try_emplace({a, b});
    std::vector<Way>& ways = known_at->second;
    if (is_new) {
      for (Arc out : damage_.graph.in(b)) {
        const Vertex node = damage_.graph.tail(out);
        const Arc into = damage_.links(a, node);
        if (into >= 0 && rank[node] < 0) ways.push_back({node, into, out});
      }
      if (!ways.empty()) std::ranges::rotate(ways, ways.begin() + (a + b) % static_cast<Vertex>(ways.size()));
    }
    auto way = std::ranges::find_if(ways, [&](const Way& each) {
      return each.node != middle && room_[each.into] >= weight && room_[each.out] >= weight;
    });
    if (way == ways.end()) {
      left.push_back(row);
      continue;
    }
    const Way taken = *way;
    std::rotate(way, way + 1, ways.end());  // the next takes another one
    for (std::int64_t hop : {at + 1, at + 2})
      if (Arc link = damage_.hop(hop); link >= 0) room_[link] += weight;
    room_[taken.into] -= weight;
    room_[taken.out] -= weight;
    edge_path_[row] = add_path({forest.path_nodes[at], a, taken.node, b, forest.path_nodes[at + 4]});
    rerouted_.insert(number);
  }
  return left;
}

// Trees.

Rehanging::Tree& Rehanging::tree(std::int32_t number) {
  auto [at, is_new] = moved_.try_emplace(number, nullptr);
  if (!is_new) return *at->second;
  const ForestColumns& forest = damage_.forest;
  const auto nodes = static_cast<std::size_t>(damage_.network.num_nodes);
  Tree& made = trees_.emplace_back();
  made.root = forest.tree_root[number];
  made.weight = forest.tree_weight[number] * limits_.scale;
  made.reduces = forest.tree_phase[number] != 0;
  made.parent.assign(nodes, -1);
  made.path.assign(nodes, -1);
  made.detached.assign(nodes, 0);
  for (std::int64_t row = forest.tree_start[number]; row < forest.tree_start[number + 1]; ++row) {
    const Vertex child = made.reduces ? forest.edge_src[row] : forest.edge_dst[row];
    made.children.push_back(child);
    made.parent[child] = made.reduces ? forest.edge_dst[row] : forest.edge_src[row];
    made.path[child] = edge_path_[row];
  }
  at->second = &made;
  return made;
}

std::pair<Rehanging::Tree*, Vertex> Rehanging::child_of(std::int64_t row) {
  const ForestColumns& forest = damage_.forest;
  const auto number =
      static_cast<std::int32_t>(std::ranges::upper_bound(forest.tree_start, row) - forest.tree_start.begin() - 1);
  Tree& found = tree(number);
  return {&found, found.reduces ? forest.edge_src[row] : forest.edge_dst[row]};
}

/// The children of rows by tree, trees in the order in which they come first.
std::vector<Rehanging::Pending> Rehanging::by_tree(const Rows& rows) {
  std::vector<Pending> found;
  std::unordered_map<Tree*, std::size_t> place;
  for (std::int64_t row : rows) {
    auto [owner, child] = child_of(row);
    auto [at, is_new] = place.try_emplace(owner, found.size());
    if (is_new) found.push_back({owner, {}});
    found[at->second].children.push_back(child);
  }
  return found;
}

/// Hops between a node and the root, -1 where it is not connected to it, ignoring detached subtrees.
std::int32_t Rehanging::depth(const Tree& tree, Vertex node) const {
  std::int32_t hops = 0;
  while (node != tree.root) {
    if (tree.detached[node]) return -1;
    node = tree.parent[node];
    if (node < 0) return -1;
    ++hops;
  }
  return hops;
}

/// Hops of the longest chain through the hop from a parent to a detached subtree that is entered at one rank.
std::int32_t Rehanging::height_with(const Tree& tree, Vertex child, Vertex parent, Vertex entry) const {
  auto up = [&](Vertex node) {
    std::int32_t hops = 0;
    while (!tree.detached[node] && tree.parent[node] >= 0) node = tree.parent[node], ++hops;
    return std::pair(node, hops);
  };
  std::int32_t longest = 0;
  for (Vertex node = 0; node < damage_.network.num_nodes; ++node)
    if (auto [top, hops] = up(node); top == child) longest = std::max(longest, hops);
  return up(parent).second + 1 + up(entry).second + longest;
}

/// Hangs every subtree whose hop is gone to the rest of its tree.
bool Rehanging::rehang_broken(const Rows& rows, const StopFlag& stop) {
  std::vector<Pending> pending = by_tree(rows);
  for (Pending& each : pending) {
    for (Vertex child : each.children) each.tree->detached[child] = 1;
    for (Vertex child : each.children) use_path(each.tree->path[child], -each.tree->weight);
  }
  Hanging found;
  while (!pending.empty() && split_.size() <= kMostSplits) {
    poll(stop);
    Pending now = std::move(pending.back());
    pending.pop_back();
    auto& [tree, children] = now;
    std::size_t tries = children.size();
    bool crowding = false;
    while (!children.empty() && tries) {
      const Vertex child = children.front();
      children.pop_front();
      if (!search(*tree, child, -1, crowding, found)) {
        children.push_back(child);
        if (--tries == 0 && !crowding) {  // below those that hang by now there is no room either
          tries = children.size();
          crowding = true;
        }
        continue;
      }
      const Amount units = std::min(tree->weight, found.units);
      if (units < tree->weight) {
        // What hangs already is used by both parts alike; of the detached parts nothing is used.
        Pending rest{halved(*tree, units), children};
        rest.children.push_front(child);
        pending.push_back(std::move(rest));
      }
      hang(*tree, child, found, units);
      tries = children.size();
      crowding = false;
    }
    if (!children.empty() && !regrow(*tree)) return false;
  }
  return pending.empty();
}

/// Grows a tree anew from its root, rank by rank, low where that is possible; whether it reaches all.
bool Rehanging::regrow(Tree& tree) {
  return (limits_.tallest >= 0 && grown(tree, limits_.tallest)) || grown(tree, damage_.network.num_nodes);
}

/// Grows a tree of a number of hops at most; ranks that it does not reach are detached.
bool Rehanging::grown(Tree& tree, std::int32_t tallest) {
  for (Vertex child : tree.children)
    if (!tree.detached[child]) use_path(tree.path[child], -tree.weight);
  std::ranges::fill(tree.detached, 0);
  auto rank = damage_.network.rank;
  std::vector<std::uint8_t> wanted(rank.size());
  for (Vertex child : tree.children) wanted[child] = 1;
  std::size_t missing = tree.children.size();
  std::vector<double> paid(rank.size(), kInfinite);
  std::vector<Vertex> from(rank.size(), -1);
  std::vector<std::int32_t> hops(rank.size(), -1);
  hops[tree.root] = 0;
  Heap<std::pair<double, Vertex>> heap;
  paid[tree.root] = 0.0;
  heap.emplace(0.0, tree.root);
  while (!heap.empty() && missing) {
    auto [at, node] = heap.top();
    heap.pop();
    if (at > paid[node]) continue;
    if (wanted[node]) {
      wanted[node] = 0;
      --missing;
      std::vector<Vertex> nodes{node};
      while (rank[nodes.back()] < 0 || nodes.size() == 1) nodes.push_back(from[nodes.back()]);
      tree.parent[node] = nodes.back();
      hops[node] = hops[nodes.back()] + 1;
      if (!tree.reduces) std::ranges::reverse(nodes);
      tree.path[node] = add_path(std::move(nodes));
      use_path(tree.path[node], tree.weight);
      paid[node] = at = 0.0;
    }
    if (hops[node] == tallest) continue;
    for (Arc e : around(node, tree.reduces)) {
      const Vertex other = tree.reduces ? damage_.graph.tail(e) : damage_.graph.head(e);
      const double there = at + price(e);
      if (there < paid[other] && (rank[other] < 0 || wanted[other])) {
        paid[other] = there;
        from[other] = node;
        heap.emplace(there, other);
      }
    }
  }
  for (Vertex child : tree.children) tree.detached[child] = wanted[child];
  return !missing;
}

/// Re-hangs subtrees until no more cross the link than may; whether that is reached.
bool Rehanging::rehang_crowded(const Rows& rows, Arc link, const StopFlag& stop) {
  int misses = 0;
  std::map<std::tuple<Vertex, Vertex, bool>, int> missed;
  std::vector<Pending> pending = by_tree(rows), late;
  std::ranges::reverse(pending);
  std::set<std::pair<Tree*, Vertex>> passing;  // trees with ranks that have got more below them
  Hanging found;
  while ((!pending.empty() || !late.empty()) && room_[link] < 0 && misses < kMostMisses) {
    poll(stop);
    if (pending.empty()) {
      pending = std::move(late);
      late.clear();
      std::ranges::reverse(pending);
    }
    Pending now = std::move(pending.back());
    pending.pop_back();
    auto& [tree, children] = now;
    while (!children.empty() && room_[link] < 0 && misses < kMostMisses) {
      const Vertex child = children.front();
      children.pop_front();
      if (passing.erase({tree, child})) {  // one below the other makes tall trees
        late.push_back({tree, {child}});
        continue;
      }
      int& alike = missed[{child, tree->parent[child], tree->reduces}];
      const std::int32_t old = tree->path[child];
      if (alike == kMostAlike || !uses(old, link)) continue;
      const Amount units = std::min(tree->weight, -room_[link]);
      use_path(old, -units);
      tree->detached[child] = 1;
      const bool any = search(*tree, child, link, false, found);
      const Amount taken = any ? std::min(units, found.units) : 0;
      use_path(old, units - taken);
      if (!any || (taken < tree->weight && split_.size() > kMostSplits)) {
        use_path(old, taken);
        tree->detached[child] = 0;
        ++misses;
        ++alike;
        continue;
      }
      misses = 0;
      if (taken < tree->weight) {
        Tree* rest = halved(*tree, taken);
        rest->detached[child] = 0;
        Pending more{rest, children};
        more.children.push_front(child);
        pending.push_back(std::move(more));
      }
      hang(*tree, child, found, taken);
      for (Vertex above = found.parent; above != tree->root; above = tree->parent[above]) passing.emplace(tree, above);
    }
  }
  return room_[link] >= 0;
}

/// Leaves `units` of its weight to a tree; another that is like it gets the rest.
Rehanging::Tree* Rehanging::halved(Tree& tree, Amount units) {
  Tree rest = tree;
  rest.weight = tree.weight - units;
  tree.weight = units;
  trees_.push_back(std::move(rest));
  split_.push_back(&trees_.back());
  return split_.back();
}

/// Hangs the subtree of `child`, whose old hop is not counted any more, as the search found it.
void Rehanging::hang(Tree& tree, Vertex child, const Hanging& found, Amount units) {
  tree.detached[child] = 0;
  for (Arc link : found.gained) room_[link] -= units;
  for (Arc link : found.freed) room_[link] += units;
  std::vector<Vertex> chain{found.entry};
  while (chain.back() != child) chain.push_back(tree.parent[chain.back()]);
  Vertex above = found.parent;
  std::int32_t way = add_path(found.path);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    tree.parent[chain[i]] = above;
    tree.path[chain[i]] = way;
    if (i < found.turned.size()) {
      above = chain[i];
      way = add_path(found.turned[i]);
    }
  }
}

/// The cheapest hop from the rest of the tree into the subtree of `child`; whether there is one.
///
/// It has room; with `crowding` it need not, and costs the more the less there is: others make room then.
bool Rehanging::search(const Tree& tree, Vertex child, Arc banned, bool crowding, Hanging& found) {
  const Digraph& graph = damage_.graph;
  auto rank = damage_.network.rank;
  auto cost = damage_.network.cost;
  ++stamp_;
  std::ranges::fill(first_kid_, -1);
  for (auto at = static_cast<Vertex>(rank.size()); at-- > 0;)
    if (const Vertex above = tree.parent[at]; above >= 0 && !tree.detached[at])
      next_kid_[at] = first_kid_[above], first_kid_[above] = at;
  using Item = std::tuple<double, double, Vertex>;
  Heap<Item> heap;
  auto set = [&](Vertex node, double price, Vertex from) {
    seen_[node] = stamp_;
    best_[node] = price;
    origin_[node] = from;
  };
  std::vector<Vertex> queue{child};
  std::size_t inside = 1;
  below_[child] = stamp_;
  set(child, 0.0, -1);
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (Vertex kid = first_kid_[queue[i]]; kid >= 0 && inside < kMostEntries; kid = next_kid_[kid]) {
      if (below_[kid] != stamp_) ++inside;
      below_[kid] = stamp_;
      double back = 0.0;
      if (!turned(tree, kid, back)) continue;
      set(kid, best_[queue[i]] + back, -1);
      queue.push_back(kid);
    }
  for (Vertex node : queue) heap.emplace(best_[node], 0.0, node);
  const std::vector<double>& ahead = ahead_[tree.reduces];
  while (!heap.empty()) {
    const Vertex node = std::get<2>(heap.top());
    heap.pop();
    if (done_[node] == stamp_) continue;
    done_[node] = stamp_;
    if (rank[node] >= 0 && below_[node] != stamp_) {
      measure(tree, child, node, found);
      if (limits_.tallest >= 0 && height_with(tree, child, node, found.entry) > limits_.tallest) continue;
      if (crowding) found.units = tree.weight;
      if (found.units > 0) return true;
      continue;
    }
    const double paid = best_[node];
    for (Arc e : around(node, !tree.reduces)) {
      const Vertex other = tree.reduces ? graph.head(e) : graph.tail(e);
      if (e == banned || done_[other] == stamp_ || below_[other] == stamp_ || (room_[e] < 1 && !crowding)) continue;
      const double known = seen_[other] == stamp_ ? best_[other] : kInfinite;
      double there = paid + (crowding ? price(e) : cost[e]);
      if (there >= known) continue;
      if (rank[other] >= 0) {
        const std::int32_t hops = depth(tree, other);
        if (hops < 0) continue;
        there += hops * deeper_;
        if (there >= known) continue;
      }
      set(other, there, node);
      heap.emplace(there + ahead[other], ahead[other], other);
    }
  }
  return false;
}

/// Whether the path of a child's edge can be turned round; what that costs.
bool Rehanging::turned(const Tree& tree, Vertex kid, double& cost) const {
  auto nodes = path(tree.path[kid]);
  for (std::size_t i = nodes.size(); i-- > 1;) {
    const Arc link = damage_.links(nodes[i], nodes[i - 1]);
    if (link < 0 || room_[link] < 1) return false;
    cost += damage_.network.cost[link];
  }
  return !nodes.empty();
}

/// The hop that a search ended with: its path, what is turned round, and how many units have room.
void Rehanging::measure(const Tree& tree, Vertex child, Vertex parent, Hanging& found) const {
  found.parent = parent;
  found.path.assign(1, parent);
  while (origin_[found.path.back()] >= 0) found.path.push_back(origin_[found.path.back()]);
  found.entry = found.path.back();
  if (tree.reduces) std::ranges::reverse(found.path);
  found.gained = links_of(found.path);
  found.freed.clear();
  found.turned.clear();
  for (Vertex node = found.entry; node != child; node = tree.parent[node]) {
    auto nodes = path(tree.path[node]);
    std::vector<Vertex> back(nodes.rbegin(), nodes.rend());
    for (Arc link : links_of(nodes)) found.freed.push_back(link);
    for (Arc link : links_of(back)) found.gained.push_back(link);
    found.turned.push_back(std::move(back));
  }
  bool any = false;
  for (Arc link : found.gained) {
    const auto times = std::ranges::count(found.gained, link) - std::ranges::count(found.freed, link);
    if (times <= 0) continue;
    const Amount units = room_[link] > 0 ? room_[link] / times : 0;
    found.units = any ? std::min(found.units, units) : units;
    any = true;
  }
  if (!any) found.units = tree.weight;
}

}  // namespace coppice
