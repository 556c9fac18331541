#include "packing/path_search.h"

#include <algorithm>

namespace coppice {

static constexpr std::size_t kLabelsPerVertex = 1000;

PathSearch::PathSearch(const Digraph& graph, std::span<const std::uint8_t> terminal, CutFamily& cuts)
    : graph_(graph),
      terminal_(terminal),
      cuts_(cuts),
      most_entries_(1 + std::count(terminal.begin(), terminal.end(), 0)),
      labels_at_(graph.num_vertices()) {}

std::optional<std::vector<Arc>> PathSearch::find(const TreeGrower& tree, const StopFlag& stop) {
  labels_.clear();
  for (auto& labels : labels_at_) labels.clear();
  for (Vertex x : tree.reached_list()) labels_.push_back({x, -1, -1, {}});
  const std::size_t most_labels = kLabelsPerVertex * static_cast<std::size_t>(graph_.num_vertices());
  std::vector<Arc> path;
  for (std::size_t done = 0; done < labels_.size(); ++done) {
    poll(stop);
    if (labels_.size() > most_labels) return std::nullopt;
    for (Arc e : graph_.out(labels_[done].vertex)) {
      Vertex to = graph_.head(e);
      if (tree.reached(to)) continue;
      path_to(static_cast<std::int32_t>(done), path);
      path.push_back(e);
      if (!tree.has_room(path) || !cuts_.allows(path, terminal_[to] ? to : -1)) continue;
      if (terminal_[to]) return path;
      Label label{to, e, static_cast<std::int32_t>(done), entered_with(labels_[done], e)};
      if (is_dominated(label)) continue;
      labels_at_[to].push_back(static_cast<std::int32_t>(labels_.size()));
      labels_.push_back(std::move(label));
    }
  }
  return std::vector<Arc>{};
}

void PathSearch::path_to(std::int32_t label, std::vector<Arc>& path) const {
  path.clear();
  for (; labels_[label].from >= 0; label = labels_[label].from) path.push_back(labels_[label].arc);
  std::reverse(path.begin(), path.end());
}

std::vector<std::pair<std::int32_t, Amount>> PathSearch::entered_with(const Label& label, Arc e) const {
  auto entered = label.entered;
  for (auto [cut, times] : cuts_.entered(e)) {
    if (cuts_.entries_left(cut) >= most_entries_) continue;
    auto known = std::lower_bound(entered.begin(), entered.end(), std::pair{cut, Amount{0}});
    if (known != entered.end() && known->first == cut) {
      known->second += times;
    } else {
      entered.insert(known, {cut, times});
    }
  }
  return entered;
}

// A way that meets itself is always dominated, by its beginning.
bool PathSearch::is_dominated(const Label& label) const {
  return std::any_of(labels_at_[label.vertex].begin(), labels_at_[label.vertex].end(), [&](std::int32_t other) {
    auto at = label.entered.begin();
    for (auto [cut, times] : labels_[other].entered) {
      while (at != label.entered.end() && at->first < cut) ++at;
      if (at == label.entered.end() || at->first != cut || at->second < times) return false;
    }
    return true;
  });
}

}  // namespace coppice
