#include "low_trees/low_trees.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace coppice {

namespace {

using Rank = std::int32_t;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kRounds = 4;          // passes over the ranks in which they are hung anew at most
constexpr double kGain = 1 - 1e-9;  // what is cheaper by less is not

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

void check(const CostTable& table, Rank root) {
  auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("a low tree needs ") + what);
  };
  expect(table.num_ranks > 0 && table.cost.size() == at(table.num_ranks) * at(table.num_ranks), "a cost for each pair of ranks");
  expect(0 <= root && root < table.num_ranks, "a rank as its root");
}

/// Grows one tree.
class Growth {
 public:
  Growth(const CostTable& table, std::span<const double> far, Rank root, Rank height)
      : table_(table), hops_(far), root_(root), height_(height), ranks_(at(table.num_ranks)), start_(ranks_), least_(ranks_) {}

  LowTree grown(Rank turn) {
    begin(turn);
    while (tree_.receiver.size() + 1 < ranks_) {
      if (add_cheapest()) continue;
      if (!order_.empty()) return {};
      begin(std::max(turn, Rank{0}));
    }
    return std::move(tree_);
  }

 private:
  void begin(Rank turn) {
    tree_ = {};
    depth_.assign(ranks_, -1);
    depth_[at(root_)] = 0;
    order_.clear();
    if (turn < 0) return;
    const double all = static_cast<double>(ranks_);
    for (std::size_t v = 0; v < ranks_; ++v)
      order_.push_back(hops_[v] + static_cast<double>((v + at(turn)) % ranks_) / (2 * all));
  }

  /// Adds the cheapest path from the tree to the farthest rank outside it, or to the cheapest one; false where some
  /// rank is out of reach.
  bool add_cheapest() {
    layers_.resize(at(height_) * ranks_);
    before_.assign(at(height_) * ranks_, 0);
    std::fill(least_.begin(), least_.end(), kNever);
    for (Rank hop = 0; hop < height_; ++hop) relax(hop);
    Rank node = -1;
    for (std::size_t v = 0; v < ranks_; ++v) {
      if (depth_[v] >= 0) continue;
      if (least_[v] == kNever) return false;
      const bool better = node < 0 || (order_.empty() ? least_[v] < least_[at(node)] : order_[v] > order_[at(node)]);
      if (better) node = static_cast<Rank>(v);
    }
    Rank hop = 0;
    while (layers_[at(hop) * ranks_ + at(node)] != least_[at(node)]) ++hop;
    path_.clear();
    for (; depth_[at(node)] < 0; --hop) {
      path_.push_back(node);
      node = before_[at(hop) * ranks_ + at(node)];
    }
    for (std::size_t i = path_.size(); i-- > 0; node = path_[i]) {
      depth_[at(path_[i])] = depth_[at(node)] + 1;
      tree_.sender.push_back(node);
      tree_.receiver.push_back(path_[i]);
    }
    return true;
  }

  /// What ranks cost that are reached in the next hop: from the tree's ranks of this depth, and from others.
  void relax(Rank hop) {
    double* reached = &layers_[at(hop) * ranks_];
    Rank* before = &before_[at(hop) * ranks_];
    const double* last = hop == 0 ? nullptr : reached - ranks_;
    for (std::size_t v = 0; v < ranks_; ++v)
      start_[v] = depth_[v] == hop ? 0 : depth_[v] < 0 && last != nullptr ? last[v] : kNever;
    std::fill(reached, reached + ranks_, kNever);
    for (std::size_t u = 0; u < ranks_; ++u) {
      if (start_[u] == kNever) continue;
      const auto cost = table_.from(static_cast<Rank>(u));
      for (std::size_t v = 0; v < ranks_; ++v) {
        const double through = start_[u] + cost[v];
        const bool nearer = through < reached[v];
        reached[v] = nearer ? through : reached[v];
        before[v] = nearer ? static_cast<Rank>(u) : before[v];
      }
    }
    for (std::size_t v = 0; v < ranks_; ++v) least_[v] = std::min(least_[v], reached[v]);
  }

  const CostTable& table_;
  std::span<const double> hops_;
  const Rank root_, height_;
  const std::size_t ranks_;
  LowTree tree_;
  std::vector<Rank> depth_;
  std::vector<double> order_;  // per rank: the greatest one comes first; empty: the cheapest does
  std::vector<double> layers_, start_, least_;
  std::vector<Rank> before_, path_;
};

/// A tree as parents, with what follows from them.
struct Shape {
  Rank root;
  std::vector<Rank> parent;
  std::vector<Rank> depth;    // -1 where the tree does not come
  std::vector<Rank> below;    // hops to the farthest rank below
  std::vector<Rank> in_order;  // ranks, each after its parent

  void update() {
    const std::size_t ranks = parent.size();
    depth.assign(ranks, -1);
    below.assign(ranks, 0);
    depth[at(root)] = 0;
    std::vector<Rank> above;
    for (std::size_t v = 0; v < ranks; ++v) {
      above.clear();
      Rank up = static_cast<Rank>(v);
      for (; depth[at(up)] < 0 && parent[at(up)] >= 0; up = parent[at(up)]) {
        if (above.size() > ranks) throw std::invalid_argument("a low tree needs parents without circles");
        above.push_back(up);
      }
      if (depth[at(up)] < 0) continue;
      for (std::size_t i = above.size(); i-- > 0;) depth[at(above[i])] = depth[at(parent[at(above[i])])] + 1;
    }
    in_order.resize(ranks);
    std::iota(in_order.begin(), in_order.end(), Rank{0});
    std::stable_sort(in_order.begin(), in_order.end(), [&](Rank a, Rank b) { return depth[at(a)] < depth[at(b)]; });
    for (std::size_t i = ranks; i-- > 0;) {
      const Rank v = in_order[i];
      if (depth[at(v)] > 0) below[at(parent[at(v)])] = std::max(below[at(parent[at(v)])], below[at(v)] + 1);
    }
  }
};

}  // namespace

LowTree grow_low_tree(const CostTable& table, std::span<const double> far, std::int32_t root, std::int32_t height,
                      std::int32_t turn) {
  check(table, root);
  if (far.size() != at(table.num_ranks) || height < 1)
    throw std::invalid_argument("a low tree needs the hops to each rank, and a height of 1 or more");
  return Growth(table, far, root, height).grown(turn);
}

LowTree rehung_low_tree(const CostTable& table, const LowTree& tree, std::int32_t root, std::int32_t height) {
  check(table, root);
  const std::size_t ranks = at(table.num_ranks);
  Shape shape{.root = root, .parent = std::vector<Rank>(ranks, -1), .depth = {}, .below = {}, .in_order = {}};
  auto known = [&](Rank v) { return 0 <= v && v < table.num_ranks; };
  for (std::size_t i = 0; i < tree.receiver.size(); ++i) {
    if (!known(tree.sender[i]) || !known(tree.receiver[i])) throw std::invalid_argument("a low tree needs ranks as ends of edges");
    shape.parent[at(tree.receiver[i])] = tree.sender[i];
  }
  shape.update();
  auto paid = [&](Rank v) { return shape.parent[at(v)] < 0 ? 0 : table.from(shape.parent[at(v)])[at(v)]; };
  std::vector<Rank> dearest(ranks);
  std::vector<std::uint8_t> inside(ranks);
  for (int round = 0, moved = 1; round < kRounds && moved > 0; ++round) {
    moved = 0;
    std::iota(dearest.begin(), dearest.end(), Rank{0});
    std::stable_sort(dearest.begin(), dearest.end(), [&](Rank a, Rank b) { return paid(a) > paid(b); });
    for (const Rank rank : dearest) {
      if (rank == root || shape.parent[at(rank)] < 0) continue;
      for (Rank v : shape.in_order) {
        const Rank parent = shape.parent[at(v)];
        inside[at(v)] = v == rank || (shape.depth[at(v)] > 0 && inside[at(parent)] != 0);
      }
      Rank best = -1;
      double least = kNever;
      for (Rank v = 0; v < table.num_ranks; ++v) {
        const bool fits = shape.depth[at(v)] >= 0 && shape.depth[at(v)] + 1 + shape.below[at(rank)] <= height && inside[at(v)] == 0;
        if (!fits || table.from(v)[at(rank)] >= least) continue;
        least = table.from(v)[at(rank)];
        best = v;
      }
      if (best < 0 || !(least < paid(rank) * kGain)) continue;
      shape.parent[at(rank)] = best;
      shape.update();
      ++moved;
    }
  }
  LowTree found;
  for (Rank v : shape.in_order) {
    if (shape.parent[at(v)] < 0) continue;
    found.sender.push_back(shape.parent[at(v)]);
    found.receiver.push_back(v);
  }
  return found;
}

}  // namespace coppice
