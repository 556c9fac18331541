#include "exchange/bundles.h"

#include <algorithm>
#include <map>

namespace coppice {

Bundles::Bundles(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                 std::span<const Amount> capacity)
    : graph_(&graph), capacity_(capacity), residual_(capacity.begin(), capacity.end()), index_(graph.num_vertices(), kNone) {
  for (Vertex v = 0; v < graph.num_vertices(); ++v)
    if (terminal[v]) index_[v] = static_cast<std::int32_t>(terminals_.size()), terminals_.push_back(v);
  for (Vertex v : terminals_) {
    if (roots[v] == 0) continue;
    bundles_.push_back({v, roots[v], {}, {}, {}, 0});
    clear(size() - 1);
  }
}

std::int64_t Bundles::missing() const {
  std::int64_t missing = 0;
  for (const Bundle& tree : bundles_) missing += tree.missing;
  return missing;
}

std::int32_t Bundles::height() const {
  std::int32_t height = 0;
  for (const Bundle& tree : bundles_) height = std::max(height, *std::max_element(tree.depth.begin(), tree.depth.end()));
  return height;
}

void Bundles::change_residual(std::int32_t path, Amount change) {
  for (Arc e : paths_[path]) residual_[e] += change;
}

void Bundles::hang(std::int32_t b, Vertex v, std::int32_t path) {
  Bundle& tree = bundles_[b];
  const std::int32_t i = index_[v], above = index_[parent(path)];
  change_residual(path, -tree.weight);
  tree.via[i] = path;
  ++tree.children[above];
  if (tree.depth[i] < 0) {
    --tree.missing;
    tree.depth[i] = tree.depth[above] + 1;
  } else {
    move_to_depth(tree, v, tree.depth[above] + 1);
  }
}

void Bundles::move_to_depth(Bundle& tree, Vertex v, std::int32_t depth) {
  const std::int32_t change = depth - tree.depth[index_[v]];
  if (change == 0) return;
  for (std::int32_t j : subtree(tree, v)) tree.depth[j] += change;
}

void Bundles::take_off(std::int32_t b, Vertex v) {
  Bundle& tree = bundles_[b];
  const std::int32_t i = index_[v];
  change_residual(tree.via[i], tree.weight);
  --tree.children[index_[parent(tree.via[i])]];
  tree.via[i] = kNone;
}

void Bundles::drop(std::int32_t b, Vertex v) {
  bundles_[b].depth[index_[v]] = kNone;
  ++bundles_[b].missing;
}

void Bundles::drop_below(std::int32_t depth) {
  for (std::int32_t b = 0; b < size(); ++b) {
    for (Vertex v : terminals_) {
      if (bundles_[b].depth[index_[v]] <= depth) continue;
      take_off(b, v);
      drop(b, v);
    }
  }
}

void Bundles::clear(std::int32_t b) {
  Bundle& tree = bundles_[b];
  for (std::int32_t path : tree.via)
    if (path >= 0) change_residual(path, tree.weight);
  tree.via.assign(terminals_.size(), kNone);
  tree.depth.assign(terminals_.size(), kNone);
  tree.children.assign(terminals_.size(), 0);
  tree.depth[index_[tree.root]] = 0;
  tree.missing = static_cast<std::int32_t>(terminals_.size()) - 1;
}

void Bundles::split(std::int32_t b, Amount amount) {
  bundles_.push_back(bundles_[b]);
  bundles_[b].weight = amount;
  bundles_.back().weight -= amount;
}

void Bundles::join_equal() {
  std::map<std::pair<Vertex, std::vector<std::int32_t>>, std::size_t> first;
  std::vector<Bundle> kept;
  for (Bundle& tree : bundles_) {
    auto [at, fresh] = first.try_emplace({tree.root, tree.via}, kept.size());
    if (fresh) {
      kept.push_back(std::move(tree));
    } else {
      kept[at->second].weight += tree.weight;
    }
  }
  bundles_ = std::move(kept);
}

const std::vector<std::int32_t>& Bundles::subtree(const Bundle& tree, Vertex v) {
  const std::int32_t i = index_[v];
  subtree_.assign(1, i);
  if (tree.children[i] == 0) return subtree_;
  enum : std::uint8_t { kUnknown, kBelow, kElsewhere };
  places_.assign(terminals_.size(), kUnknown);
  places_[i] = kBelow;
  for (std::int32_t j = 0; j < static_cast<std::int32_t>(terminals_.size()); ++j) {
    climb_.clear();
    std::int32_t k = j;
    while (places_[k] == kUnknown && tree.depth[k] > tree.depth[i] && tree.via[k] >= 0) {
      climb_.push_back(k);
      k = index_[parent(tree.via[k])];
    }
    const std::uint8_t where = places_[k] == kBelow ? kBelow : kElsewhere;
    for (std::int32_t each : climb_) places_[each] = where;
    if (j != i && places_[j] == kBelow) subtree_.push_back(j);
  }
  return subtree_;
}

}  // namespace coppice
