#include "packing/cut_family.h"

#include <algorithm>

#include "core/hash.h"

namespace coppice {

std::int32_t CutFamily::add(std::vector<Vertex> nodes, Amount slack) {
  std::sort(nodes.begin(), nodes.end());
  const std::uint64_t hash = hash_of(nodes);
  for (std::int32_t known : by_hash_[hash])
    if (nodes_[known] == nodes) return -1;
  std::int32_t cut = size();
  by_hash_[hash].push_back(cut);
  slack_.push_back(slack);
  used_.push_back(0), missing_.push_back(0), rooted_.push_back(0);
  reached_.emplace_back(action_.order, 0);

  std::vector<std::int32_t> classes;
  for (Vertex v : nodes)
    for (Arc e : graph_.in(v))
      if (!std::binary_search(nodes.begin(), nodes.end(), graph_.tail(e))) classes.push_back(action_.arc_class[e]);
  std::sort(classes.begin(), classes.end());
  for (std::size_t i = 0, j; i < classes.size(); i = j) {
    for (j = i; j < classes.size() && classes[j] == classes[i];) ++j;
    by_class_[classes[i]].emplace_back(cut, static_cast<Amount>(j - i) * action_.images_per_arc[classes[i]]);
  }
  for (Vertex v : nodes) {
    auto& cuts = by_orbit_[action_.orbit[v]];
    if (cuts.empty() || cuts.back().cut != cut) cuts.push_back({cut, {}});
    cuts.back().elements.push_back(action_.element[v]);
  }
  nodes_.push_back(std::move(nodes));
  return cut;
}

void CutFamily::growth_of(Vertex root, std::span<const std::pair<std::int32_t, Amount>> use, std::vector<Amount>& growth) const {
  growth.assign(size(), -action_.order);
  for (auto [arc_class, units] : use)
    for (auto [cut, times] : by_class_[arc_class]) growth[cut] += units / action_.images_per_arc[arc_class] * times;
  for (const Members& members : by_orbit_[action_.orbit[root]])
    growth[members.cut] += static_cast<Amount>(members.elements.size());
}

void CutFamily::start_tree(Vertex root, Amount multiplicity) {
  root_ = root;
  multiplicity_ = multiplicity;
  std::fill(used_.begin(), used_.end(), 0);
  std::fill(missing_.begin(), missing_.end(), action_.order);
  std::fill(rooted_.begin(), rooted_.end(), 0);
  for (auto& flags : reached_) std::fill(flags.begin(), flags.end(), 0);
  for (const Members& members : by_orbit_[action_.orbit[root]])
    rooted_[members.cut] = static_cast<Amount>(members.elements.size());
  land(root);
}

void CutFamily::land(Vertex v) {
  for (const Members& members : by_orbit_[action_.orbit[v]]) {
    std::int32_t cut = members.cut;
    if (missing_[cut] == 0) continue;
    for (Amount h : members.elements) {
      std::uint8_t& flag = reached_[cut][action_.difference(action_.element[v], h)];
      missing_[cut] -= !flag;
      flag = 1;
    }
  }
}

Amount CutFamily::newly_reached(std::int32_t cut, Vertex v) const {
  if (missing_[cut] == 0) return 0;
  const auto& cuts = by_orbit_[action_.orbit[v]];  // ascending
  auto members = std::lower_bound(cuts.begin(), cuts.end(), cut, [](const Members& m, std::int32_t c) { return m.cut < c; });
  if (members == cuts.end() || members->cut != cut) return 0;
  Amount fresh = 0;
  for (Amount h : members->elements) fresh += !reached_[cut][action_.difference(action_.element[v], h)];
  return fresh;
}

bool CutFamily::allows(std::span<const Arc> path, Vertex landing) {
  for (std::int32_t cut : path_cuts_) path_times_[cut] = 0;
  path_cuts_.clear();
  path_times_.resize(size(), 0);
  for (Arc e : path) {
    for (auto [cut, times] : by_class_[action_.arc_class[e]]) {
      if (path_times_[cut] == 0) path_cuts_.push_back(cut);
      path_times_[cut] += times;
    }
  }
  for (std::int32_t cut : path_cuts_) {
    Amount entered = potential(cut) + path_times_[cut], left = slack_[cut] / multiplicity_;
    if (entered <= left) continue;  // whether it lands in X or not
    if (entered - std::min(missing_[cut], path_times_[cut]) > left) return false;
    if (landing >= 0 && entered - newly_reached(cut, landing) > left) return false;
  }
  return true;
}

void CutFamily::take(std::span<const Arc> path, Vertex landing) {
  for (Arc e : path)
    for (auto [cut, times] : by_class_[action_.arc_class[e]]) used_[cut] += times;
  land(landing);
}

void CutFamily::exchange(std::int32_t freed, std::int32_t spent) {
  for (auto [cut, times] : by_class_[freed]) used_[cut] -= times;
  for (auto [cut, times] : by_class_[spent]) used_[cut] += times;
}

Amount CutFamily::largest_multiplicity(Amount limit) const {
  for (std::int32_t cut = 0; cut < size(); ++cut)
    if (Amount growth = potential(cut); growth > 0) limit = std::min(limit, slack_[cut] / growth);
  return limit;
}

void CutFamily::charge_tree(Amount multiplicity) {
  for (std::int32_t cut = 0; cut < size(); ++cut) slack_[cut] -= multiplicity * potential(cut);
}

}  // namespace coppice
