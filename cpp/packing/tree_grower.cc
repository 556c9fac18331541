#include "packing/tree_grower.h"

#include <algorithm>

namespace coppice {

void count_use(std::vector<std::int32_t>& classes, const GroupAction& action, std::vector<std::pair<std::int32_t, Amount>>& use) {
  std::sort(classes.begin(), classes.end());
  for (std::size_t i = 0, j; i < classes.size(); i = j) {
    for (j = i; j < classes.size() && classes[j] == classes[i];) ++j;
    use.emplace_back(classes[i], static_cast<Amount>(j - i) * action.images_per_arc[classes[i]]);
  }
}

TreeGrower::TreeGrower(const Digraph& graph, const GroupAction& action, std::span<const std::uint8_t> terminal, CutFamily& cuts,
                       std::vector<Amount>& residual)
    : graph_(graph),
      action_(action),
      terminal_(terminal),
      cuts_(cuts),
      residual_(residual),
      num_terminals_(static_cast<std::int32_t>(std::count_if(terminal.begin(), terminal.end(), [](auto t) { return t != 0; }))),
      reached_(graph.num_vertices(), 0),
      closed_(graph.num_vertices(), 0),
      visited_(graph.num_vertices(), 0),
      parent_(graph.num_vertices(), -1) {
  edge_start_.assign(graph.num_vertices(), 0);
}

void TreeGrower::start(Vertex root, Amount multiplicity) {
  growing_ = true;
  exchanged_ = false;
  root_ = root;
  multiplicity_ = multiplicity;
  arcs_.clear();
  reached_list_.assign(1, root);
  searched_ = 0;
  reached_[root] = ++stamp_;
  cuts_.start_tree(root, multiplicity);
}

bool TreeGrower::grow() {
  while (!spans() && searched_ < reached_list_.size()) {
    Vertex x = reached_list_[searched_++];
    while (!spans() && search_from(x)) {
    }
  }
  return spans();
}

void TreeGrower::lower_multiplicity(Amount multiplicity) {
  for (Arc e : arcs_) change_residual(action_.arc_class[e], multiplicity_ - multiplicity);
  multiplicity_ = multiplicity;
  cuts_.lower_multiplicity(multiplicity);
  searched_ = 0;
  std::fill(closed_.begin(), closed_.end(), 0);
}

void TreeGrower::extend(std::span<const Arc> path) {
  Vertex landing = graph_.head(path.back());
  for (Arc e : path) change_residual(action_.arc_class[e], -multiplicity_);
  cuts_.take(path, landing);
  edge_start_[landing] = arcs_.size();
  arcs_.insert(arcs_.end(), path.begin(), path.end());
  reached_[landing] = stamp_;
  reached_list_.push_back(landing);
}

void TreeGrower::abandon() {
  for (Arc e : arcs_) change_residual(action_.arc_class[e], multiplicity_);
  arcs_.clear();
  growing_ = false;
}

Tree TreeGrower::finish(Amount limit) {
  if (exchanged_) restore_order();
  Tree tree{root_, 0, arcs_, {}};
  std::vector<std::int32_t> classes(arcs_.size());
  for (std::size_t i = 0; i < arcs_.size(); ++i) classes[i] = action_.arc_class[arcs_[i]];
  count_use(classes, action_, tree.use);
  abandon();
  tree.multiplicity = cuts_.largest_multiplicity(limit);
  for (auto [arc_class, units] : tree.use) tree.multiplicity = std::min(tree.multiplicity, residual_[arc_class] / units);
  for (auto [arc_class, units] : tree.use) residual_[arc_class] -= tree.multiplicity * units;
  cuts_.charge_tree(tree.multiplicity);
  return tree;
}

// An arc that could carry the tree now, for some way of getting to its tail.
bool TreeGrower::arc_is_open(Vertex from, Arc e) const {
  Vertex to = graph_.head(e);
  std::int32_t arc_class = action_.arc_class[e];
  return has_units(arc_class) && reached_[to] != stamp_ && closed_[to] != stamp_ && to != from;
}

void TreeGrower::path_to(Vertex v, std::vector<Arc>& path) const {
  path.clear();
  for (Arc e = parent_[v]; e >= 0; e = parent_[graph_.tail(e)]) path.push_back(e);
  std::reverse(path.begin(), path.end());
}

bool TreeGrower::has_room(std::span<const Arc> path) const {
  for (std::size_t i = 0; i < path.size(); ++i) {
    std::int32_t arc_class = action_.arc_class[path[i]];
    Amount units = action_.images_per_arc[arc_class];
    if (action_.order > 1)  // several arcs of the path may be of one class
      for (std::size_t j = 0; j < i; ++j)
        if (action_.arc_class[path[j]] == arc_class) units += action_.images_per_arc[arc_class];
    if (residual_[arc_class] < multiplicity_ * units) return false;
  }
  return true;
}

bool TreeGrower::is_ancestor(Vertex a, Vertex v) const {
  while (v != a && v != root_) v = graph_.tail(arcs_[edge_start_[v]]);
  return v == a;
}

bool TreeGrower::exchange() {
  for (Vertex y = 0; y < graph_.num_vertices(); ++y) {
    if (!terminal_[y] || reached(y)) continue;
    for (Arc e : graph_.in(y))
      if (terminal_[graph_.tail(e)] && reached(graph_.tail(e)) && exchange_for(y, e)) return true;
  }
  return false;
}

// Breadth-first over classes: the class of `last` is used up; hanging a vertex over from it to another class frees it
// and needs that class in turn, until one has units left.
bool TreeGrower::exchange_for(Vertex y, Arc last) {
  std::vector<Move> moves;
  std::vector<std::uint8_t> seen(action_.num_classes(), 0);
  std::vector<std::pair<std::int32_t, std::int32_t>> queue{{action_.arc_class[last], -1}};  // (class, move that needs it)
  seen[action_.arc_class[last]] = 1;
  for (std::size_t done = 0; done < queue.size(); ++done) {
    auto [needed, by] = queue[done];
    for (Vertex z : reached_list_) {
      if (z == root_) continue;
      Arc now = arcs_[edge_start_[z]];
      if (action_.arc_class[now] != needed || graph_.head(now) != z) continue;
      for (Arc e : graph_.in(z)) {
        Vertex w = graph_.tail(e);
        std::int32_t arc_class = action_.arc_class[e];
        if (seen[arc_class] || !terminal_[w] || !reached(w) || is_ancestor(z, w)) continue;
        seen[arc_class] = 1;
        moves.push_back({z, e, by});
        auto index = static_cast<std::int32_t>(moves.size()) - 1;
        if (!has_units(arc_class)) {
          queue.emplace_back(arc_class, index);
        } else if (cuts_.allows({&e, 1}, y) && apply(moves, index, last)) {
          return true;
        }
      }
    }
  }
  return false;
}

// Carries out the chain of moves that ends with moves[end], then lands on the head of `last`.
bool TreeGrower::apply(const std::vector<Move>& moves, std::int32_t end, Arc last) {
  std::vector<std::pair<Vertex, Arc>> undo;
  for (std::int32_t i = end; i >= 0; i = moves[i].from) {
    Vertex z = moves[i].vertex;
    if (is_ancestor(z, graph_.tail(moves[i].to))) {  // an earlier move of the chain has brought z above it
      for (std::size_t j = undo.size(); j-- > 0;) arcs_[edge_start_[undo[j].first]] = undo[j].second;
      return false;
    }
    undo.emplace_back(z, arcs_[edge_start_[z]]);
    arcs_[edge_start_[z]] = moves[i].to;
  }
  exchanged_ = true;
  std::int32_t freed = action_.arc_class[last], spent = action_.arc_class[moves[end].to];
  change_residual(freed, multiplicity_);
  change_residual(spent, -multiplicity_);
  cuts_.exchange(freed, spent);
  extend({&last, 1});  // no class has more units than before, so vertices already searched from stay barren
  return true;
}

// Edges in breadth-first order from the root.
void TreeGrower::restore_order() {
  std::vector<std::vector<Vertex>> children(graph_.num_vertices());
  for (Vertex v : reached_list_)
    if (v != root_) children[graph_.tail(arcs_[edge_start_[v]])].push_back(v);
  std::vector<Arc> ordered;
  ordered.reserve(arcs_.size());
  std::vector<Vertex> order{root_};
  for (std::size_t done = 0; done < order.size(); ++done) {
    for (Vertex v : children[order[done]]) {
      for (std::size_t i = edge_start_[v];; ++i) {
        ordered.push_back(arcs_[i]);
        if (graph_.head(arcs_[i]) == v) break;
      }
      order.push_back(v);
    }
  }
  arcs_.swap(ordered);
}

// One breadth-first search from the tree vertex x through switches; lands on every terminal that it can. Returns
// whether another search from x may find more: some arc was passed over only because of the way that led to it.
bool TreeGrower::search_from(Vertex x) {
  bool landed = false, passed_over = false;
  visited_[x] = ++search_stamp_;
  parent_[x] = -1;
  queue_.assign(1, x);
  for (std::size_t done = 0; done < queue_.size(); ++done) {
    Vertex y = queue_[done];
    candidates_.clear();
    bool closed = true;  // every way out of y is barred whichever way led to y
    for (Arc e : graph_.out(y)) {
      Vertex to = graph_.head(e);
      if (!arc_is_open(y, e)) continue;
      if (!cuts_.allows({&e, 1}, terminal_[to] ? to : -1)) continue;
      closed = false;
      if (visited_[to] == search_stamp_) continue;
      candidates_.emplace_back(residual_[action_.arc_class[e]], e);
    }
    if (closed && y != x) closed_[y] = stamp_;
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    for (auto [left, e] : candidates_) {
      Vertex to = graph_.head(e);
      if (reached_[to] == stamp_ || visited_[to] == search_stamp_) continue;
      path_to(y, path_);
      path_.push_back(e);
      if (!has_room(path_) || !cuts_.allows(path_, terminal_[to] ? to : -1)) {
        passed_over = true;
        continue;
      }
      if (terminal_[to]) {
        extend(path_);
        landed = true;
        if (spans()) return false;
      } else {
        visited_[to] = search_stamp_;
        parent_[to] = e;
        queue_.push_back(to);
      }
    }
  }
  return landed && passed_over;
}

}  // namespace coppice
