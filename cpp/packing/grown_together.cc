#include "packing/grown_together.h"

#include <algorithm>
#include <stdexcept>

#include "cuts/feasibility.h"

namespace coppice {

namespace {

class Branchings {
 public:
  Branchings(const Digraph& graph, Vertex root, std::int32_t trees, std::span<const Amount> capacity)
      : graph_(graph),
        trees_(trees),
        vertices_(static_cast<std::size_t>(graph.num_vertices())),
        left_(capacity.begin(), capacity.end()),
        level_(static_cast<std::size_t>(trees) * vertices_, -1),
        refused_(static_cast<std::size_t>(trees) * left_.size(), 0),
        arcs_(static_cast<std::size_t>(trees)),
        flow_(left_.size(), 0),
        seen_(vertices_ + static_cast<std::size_t>(trees), 0),
        enters_(static_cast<std::size_t>(trees), -1) {
    for (Amount& each : left_) each = std::min<Amount>(each, trees);
    for (std::int32_t tree = 0; tree < trees; ++tree) level(tree, root) = 0;
  }

  std::vector<Arc> grown(const StopFlag& stop) {
    std::size_t missing = static_cast<std::size_t>(trees_) * (vertices_ - 1);
    for (std::int32_t round = 0; missing > 0; ++round) {
      poll(stop);
      for (Vertex v = 0; v < graph_.num_vertices(); ++v)
        for (std::int32_t tree = 0; tree < trees_; ++tree)
          if (level(tree, v) < 0 && take_arc_into(v, tree, round)) --missing;
    }
    std::vector<Arc> all;
    for (const auto& each : arcs_) all.insert(all.end(), each.begin(), each.end());
    return all;
  }

 private:
  // One end of a step of a search, backwards from a vertex: a vertex, or after all of them a tree.
  struct Step {
    std::int32_t at, from;  // `from`: index of the step before
    Arc arc;                // by which it is left; -1 where a tree is entered or left
    bool cancels;           // it takes back flow of that arc
  };

  std::int32_t& level(std::int32_t tree, Vertex v) {
    return level_[static_cast<std::size_t>(tree) * vertices_ + static_cast<std::size_t>(v)];
  }

  bool take_arc_into(Vertex v, std::int32_t tree, std::int32_t round) {
    for (Arc e : graph_.in(v)) {
      auto& refused = refused_[static_cast<std::size_t>(tree) * left_.size() + static_cast<std::size_t>(e)];
      const std::int32_t before = level(tree, graph_.tail(e));
      if (left_[e] == 0 || refused || before < 0 || before > round) continue;
      --left_[e];
      level(tree, v) = before + 1;
      if (all_reach(v)) {
        arcs_[tree].push_back(e);
        return true;
      }
      ++left_[e];
      level(tree, v) = -1;
      refused = 1;
    }
    return false;
  }

  // Whether every tree that has not reached v can send a unit to it.
  bool all_reach(Vertex v) {
    for (Arc e : touched_) flow_[e] = 0;
    touched_.clear();
    std::fill(enters_.begin(), enters_.end(), -1);
    for (std::int32_t tree = 0; tree < trees_; ++tree)
      if (level(tree, v) < 0 && !one_more_reaches(v)) return false;
    return true;
  }

  bool one_more_reaches(Vertex v) {
    steps_.clear();
    ++stamp_;
    visit(v, -1, -1, false);
    for (std::size_t done = 0; done < steps_.size(); ++done) {
      const auto from = static_cast<std::int32_t>(done);
      const std::int32_t at = steps_[done].at;
      if (at >= graph_.num_vertices()) {  // the unit of this tree may enter elsewhere
        visit(enters_[at - graph_.num_vertices()], from, -1, false);
        continue;
      }
      for (std::int32_t tree = 0; tree < trees_; ++tree) {
        if (level(tree, at) < 0 || level(tree, v) >= 0) continue;
        if (!visit(graph_.num_vertices() + tree, from, -1, false) || enters_[tree] >= 0) continue;
        push();
        return true;
      }
      for (Arc e : graph_.in(at))
        if (left_[e] > flow_[e]) visit(graph_.tail(e), from, e, false);
      for (Arc e : graph_.out(at))
        if (flow_[e] > 0) visit(graph_.head(e), from, e, true);
    }
    return false;
  }

  bool visit(std::int32_t at, std::int32_t from, Arc arc, bool cancels) {
    if (seen_[at] == stamp_) return false;
    seen_[at] = stamp_;
    steps_.push_back({at, from, arc, cancels});
    return true;
  }

  // Sends a unit along the last step and those before it.
  void push() {
    for (auto i = static_cast<std::int32_t>(steps_.size()) - 1; steps_[i].from >= 0; i = steps_[i].from) {
      const Step& step = steps_[i];
      if (step.at >= graph_.num_vertices()) {
        enters_[step.at - graph_.num_vertices()] = steps_[step.from].at;
      } else if (step.arc >= 0) {
        flow_[step.arc] += step.cancels ? -1 : 1;
        touched_.push_back(step.arc);
      }
    }
  }

  const Digraph& graph_;
  std::int32_t trees_;
  std::size_t vertices_;
  std::vector<Amount> left_;            // per arc
  std::vector<std::int32_t> level_;     // per tree and vertex, -1 where it has not come
  std::vector<std::uint8_t> refused_;   // per tree and arc
  std::vector<std::vector<Arc>> arcs_;  // per tree, as it grew
  std::vector<Amount> flow_;            // of the current flow, per arc
  std::vector<Arc> touched_;
  std::vector<std::int32_t> seen_;      // seen_[x] == stamp_: vertex, or after them tree, of the current search
  std::int32_t stamp_ = 0;
  std::vector<Vertex> enters_;          // per tree, where its unit enters the current flow; -1: it sends none
  std::vector<Step> steps_;
};

}  // namespace

std::vector<Arc> grow_together(const Digraph& graph, Vertex root, std::int32_t trees, std::span<const Amount> capacity,
                               const StopFlag& stop) {
  if (root < 0 || root >= graph.num_vertices()) throw std::invalid_argument("the root of trees must be a vertex");
  if (trees < 1) throw std::invalid_argument("there must be a tree to grow");
  if (capacity.size() != static_cast<std::size_t>(graph.num_arcs()))
    throw std::invalid_argument("trees need a capacity for each arc");
  if (std::ranges::any_of(capacity, [](Amount each) { return each < 0; }))
    throw std::invalid_argument("capacities of trees are 0 or more");
  const std::vector<std::uint8_t> terminal(static_cast<std::size_t>(graph.num_vertices()), 1);
  std::vector<Amount> supply(terminal.size(), 0);
  supply[static_cast<std::size_t>(root)] = trees;
  if (!FeasibilityCheck<Amount>(graph, terminal).violated(capacity, supply, trees, 1, stop).empty()) return {};
  return Branchings(graph, root, trees, capacity).grown(stop);
}

}  // namespace coppice
