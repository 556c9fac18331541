#include "symmetry/mapping.h"

#include <algorithm>

#include "core/hash.h"

namespace coppice {

static constexpr std::size_t kBall = 512;        // a local search for displacements visits no more vertices
static constexpr std::size_t kSmallGroup = 16;   // alike neighbours are tried one by one up to this many
static constexpr std::size_t kSmallDegree = 20;  // up to this degree neighbours are looked at again each time

Displacements::Displacements(const ColouredGraph& graph)
    : graph_(graph),
      level_(graph.graph.num_vertices(), -1),
      paths_(graph.graph.num_vertices(), 0),
      cache_(graph.graph.num_vertices()) {}

// Visits by levels to the given distance, or to the level of `until`; false where that is more than a ball.
bool Displacements::search(Vertex x, std::int32_t distance, Vertex until, Budget& budget) {
  for (Vertex v : reached_) level_[v] = -1;
  reached_.assign(1, x);
  level_[x] = 0;
  paths_[x] = 1;
  std::int64_t steps = 0;
  for (std::size_t done = 0; done < reached_.size(); ++done) {
    Vertex v = reached_[done];
    if (level_[v] == distance || (until >= 0 && level_[until] >= 0 && level_[v] >= level_[until])) break;
    for (Arc e : graph_.graph.out(v)) {
      Vertex w = graph_.graph.head(e);
      ++steps;
      if (level_[w] < 0) {
        if (reached_.size() == kBall) {
          budget.spend(steps);
          return false;
        }
        level_[w] = level_[v] + 1;
        paths_[w] = 0;
        reached_.push_back(w);
      }
      if (level_[w] == level_[v] + 1)
        paths_[w] += mixed(paths_[v] ^ mixed(static_cast<std::uint64_t>(graph_.label[e]) << 32 |
                                             static_cast<std::uint64_t>(graph_.colour[w])));
    }
  }
  budget.spend(steps);
  return true;
}

Displacements::Relation Displacements::relation(Vertex x, Vertex y, Budget& budget) {
  if (!search(x, graph_.graph.num_vertices(), y, budget) || level_[y] < 0) return {};
  return {level_[y], paths_[y]};
}

const std::vector<Vertex>* Displacements::related(Vertex x, Relation relation, Budget& budget) {
  Related& answer = cache_[x];
  if (!answer.known || answer.relation.distance != relation.distance || answer.relation.paths != relation.paths) {
    answer.known = true;
    answer.relation = relation;
    answer.vertices.clear();
    answer.too_far = !search(x, relation.distance, -1, budget);
    if (!answer.too_far) {
      for (Vertex v : reached_)
        if (level_[v] == relation.distance && paths_[v] == relation.paths) answer.vertices.push_back(v);
      std::sort(answer.vertices.begin(), answer.vertices.end());
    }
  }
  return answer.too_far ? nullptr : &answer.vertices;
}

MappingSearch::MappingSearch(const ColouredGraph& graph)
    : graph_(graph),
      displacements_(graph),
      map_(graph.graph.num_vertices(), -1),
      inverse_(graph.graph.num_vertices(), -1),
      is_source_(graph.graph.num_vertices(), 0),
      is_target_(graph.graph.num_vertices(), 0),
      queued_(graph.graph.num_vertices(), 0),
      mark_(graph.graph.num_vertices(), 0) {}

void MappingSearch::begin(const Rules& rules, std::pair<Vertex, Vertex> seed, Budget& budget) {
  for (Vertex v : sources_) is_source_[v] = 0;
  for (Vertex v : targets_) is_target_[v] = 0;
  for (Vertex x : trail_) {
    inverse_[map_[x]] = -1;
    map_[x] = -1;
  }
  for (Vertex x : queue_) queued_[x] = 0;
  trail_.clear();
  choices_.clear();
  queue_.clear();
  settled_.clear();
  settings_.clear();
  frontier_ = unmapped_ = 0;
  rules_ = rules;
  sources_.assign(rules.sources.begin(), rules.sources.end());
  targets_.assign(rules.targets.begin(), rules.targets.end());
  for (Vertex v : sources_) is_source_[v] = 1;
  for (Vertex v : targets_) is_target_[v] = 1;
  budget_ = &budget;
  floor_ = std::max<std::int64_t>(0, budget.left() - rules.steps);
  chain_ = seed.first;
  alive_ = seed.first < 0 || assign(seed.first, seed.second);
}

void MappingSearch::spend(std::int64_t steps) { budget_->spend(steps); }

// Continues to the next complete map; false where there is none or the work limit is reached.
bool MappingSearch::complete() {
  for (;;) {
    if (budget_->left() <= floor_) return false;
    if (!alive_ || !propagate()) {
      if (!backtrack()) return false;
      continue;
    }
    Vertex x = select();
    if (x < 0) return true;
    choices_.push_back({x, candidates(x), 0, trail_.size(), settings_.size(), frontier_, unmapped_});
    alive_ = advance();
  }
}

// Gives up the newest choice that has an alternative and takes that; false where there is none.
bool MappingSearch::backtrack() {
  while (!choices_.empty()) {
    undo(choices_.back());
    if (advance()) return alive_ = true;
    choices_.pop_back();
  }
  return false;
}

// Takes the next candidate of the newest choice that can be assigned.
bool MappingSearch::advance() {
  while (choices_.back().next < choices_.back().candidates.size()) {
    Vertex x = choices_.back().source, y = choices_.back().candidates[choices_.back().next++];
    spend(1);
    if (assign(x, y)) return true;
    undo(choices_.back());
  }
  return false;
}

void MappingSearch::undo(const Choice& choice) {
  for (; trail_.size() > choice.trail; trail_.pop_back()) {
    inverse_[map_[trail_.back()]] = -1;
    map_[trail_.back()] = -1;
  }
  for (; settings_.size() > choice.settings; settings_.pop_back()) settled_.erase(settings_.back());
  for (Vertex x : queue_) queued_[x] = 0;
  queue_.clear();
  frontier_ = choice.frontier;
  unmapped_ = choice.unmapped;
}

// Maps x to y and thereby the orbit of x. On false a part may have been done; the caller undoes it.
bool MappingSearch::assign(Vertex x, Vertex y) {
  if (map_[x] == y) return true;
  if (map_[x] >= 0 || inverse_[y] >= 0 || !permitted(x, y)) return false;
  settle_displacement(x, y);
  std::size_t done = trail_.size();
  auto set = [&](Vertex a, Vertex b) {
    if (map_[a] == b) return true;
    if (map_[a] >= 0 || inverse_[b] >= 0) return false;
    map_[a] = b;
    inverse_[b] = a;
    trail_.push_back(a);
    return true;
  };
  set(x, y);
  for (; done < trail_.size(); ++done)
    for (const VertexMap& symmetry : rules_.symmetries) {
      spend(1);
      if (!set(symmetry[trail_[done]], symmetry[map_[trail_[done]]])) return false;
    }
  if (!links_agree(x, y)) return false;
  auto enqueue = [&](Vertex v) {
    if (!queued_[v]) queued_[v] = 1, queue_.push_back(v);
  };
  enqueue(x);
  auto out = graph_.graph.out(x), in = graph_.graph.in(x);
  if (out.size() + in.size() <= 2 * kSmallDegree) {
    for (Arc e : out)
      if (map_[graph_.graph.head(e)] >= 0) enqueue(graph_.graph.head(e));
    for (Arc e : in)
      if (map_[graph_.graph.tail(e)] >= 0) enqueue(graph_.graph.tail(e));
  }
  return true;
}

bool MappingSearch::permitted(Vertex x, Vertex y) {
  if (!is_source_[x] || !is_target_[y] || rules_.source_colour[x] != rules_.target_colour[y]) return false;
  if (!rules_.orbit.empty() && graph_.compute[x] && rules_.orbit[x] == rules_.orbit[y]) return false;
  if (!rules_.constant_displacement) return true;
  auto found = settled_.find(graph_.colour[x]);
  if (found == settled_.end() || found->second.distance < 0) return true;
  const std::vector<Vertex>* related = displacements_.related(x, found->second, *budget_);
  return related == nullptr || std::binary_search(related->begin(), related->end(), y);
}

void MappingSearch::settle_displacement(Vertex x, Vertex y) {
  if (!rules_.constant_displacement || settled_.contains(graph_.colour[x])) return;
  settled_[graph_.colour[x]] = displacements_.relation(x, y, *budget_);
  settings_.push_back(graph_.colour[x]);
}

// Whether the links between x and mapped vertices are those between y and their images.
bool MappingSearch::links_agree(Vertex x, Vertex y) {
  const Digraph& g = graph_.graph;
  auto agree = [&](std::span<const Arc> from_x, std::span<const Arc> from_y, auto end) {
    spend(static_cast<std::int64_t>(from_x.size() + from_y.size()));
    std::int64_t missing = 0;
    for (Arc e : from_y) {
      if (inverse_[end(e)] < 0) continue;
      mark_[end(e)] = graph_.label[e] + 1;
      ++missing;
    }
    bool same = true;
    for (Arc e : from_x) {
      if (map_[end(e)] < 0) continue;
      same = same && mark_[map_[end(e)]] == graph_.label[e] + 1;
      --missing;
    }
    for (Arc e : from_y) mark_[end(e)] = 0;
    return same && missing == 0;
  };
  return agree(g.out(x), g.out(y), [&](Arc e) { return g.head(e); }) &&
         agree(g.in(x), g.in(y), [&](Arc e) { return g.tail(e); });
}

bool MappingSearch::propagate() {
  while (!queue_.empty()) {
    Vertex x = queue_.back();
    queue_.pop_back();
    queued_[x] = 0;
    if (budget_->left() <= floor_) return false;
    if (!propagate_from(x)) return false;
  }
  return true;
}

// Draws what is forced at the neighbours of the mapped vertex x.
bool MappingSearch::propagate_from(Vertex x) {
  std::vector<Neighbour> here, there;
  free_neighbours(x, true, here);
  free_neighbours(map_[x], false, there);
  if (here.size() != there.size()) return false;
  for (std::size_t i = 0; i < here.size(); ++i)
    if (here[i].kind != there[i].kind) return false;
  for (std::size_t first = 0, last; first < here.size(); first = last) {
    for (last = first; last < here.size() && here[last].kind == here[first].kind; ++last) {
    }
    if (last - first > kSmallGroup) continue;
    for (std::size_t i = first; i < last; ++i) {
      Vertex z = here[i].vertex, only = -1;
      if (map_[z] >= 0) continue;
      int fitting = 0;
      for (std::size_t j = first; j < last && fitting < 2; ++j) {
        Vertex w = there[j].vertex;
        if (inverse_[w] >= 0 || !permitted(z, w) || (last - first > 1 && !links_agree(z, w))) continue;
        only = w;
        ++fitting;
      }
      if (fitting == 0) return false;
      if (fitting == 1 && !assign(z, only)) return false;
    }
  }
  return true;
}

// Neighbours that are not yet mapped (of a source) or not yet images (of a target), sorted by kind.
void MappingSearch::free_neighbours(Vertex v, bool source, std::vector<Neighbour>& result) {
  const Digraph& g = graph_.graph;
  const VertexMap& taken = source ? map_ : inverse_;
  const std::vector<std::uint8_t>& inside = source ? is_source_ : is_target_;
  std::span<const std::int32_t> colour = source ? rules_.source_colour : rules_.target_colour;
  spend(static_cast<std::int64_t>(g.out(v).size() + g.in(v).size()));
  auto add = [&](Vertex w, Arc e, std::uint64_t direction) {
    if (taken[w] >= 0 || !inside[w]) return;
    result.push_back({direction << 63 | static_cast<std::uint64_t>(graph_.label[e]) << 32 |
                          static_cast<std::uint64_t>(colour[w]),
                      w});
  };
  for (Arc e : g.out(v)) add(g.head(e), e, 0);
  for (Arc e : g.in(v)) add(g.tail(e), e, 1);
  std::sort(result.begin(), result.end());
}

// The vertex to map next, or -1 if all are mapped.
Vertex MappingSearch::select() {
  if (chain_ >= 0) {
    Vertex x = map_[chain_];
    std::int64_t steps = 1;
    for (; x >= 0 && x != chain_ && map_[x] >= 0; ++steps) x = map_[x];
    spend(steps);
    if (x >= 0 && x != chain_ && is_source_[x] && map_[x] < 0) return x;
  }
  const Digraph& g = graph_.graph;
  for (; frontier_ < trail_.size(); ++frontier_) {
    Vertex v = trail_[frontier_];
    spend(1);
    for (Arc e : g.out(v))
      if (is_source_[g.head(e)] && map_[g.head(e)] < 0) return g.head(e);
    for (Arc e : g.in(v))
      if (is_source_[g.tail(e)] && map_[g.tail(e)] < 0) return g.tail(e);
  }
  for (; unmapped_ < sources_.size(); ++unmapped_)
    if (map_[sources_[unmapped_]] < 0) return sources_[unmapped_];
  return -1;
}

// Images to try for x, the most promising first.
std::vector<Vertex> MappingSearch::candidates(Vertex x) {
  const Digraph& g = graph_.graph;
  std::vector<Vertex> result;
  Vertex near = -1;
  bool leaves = false;
  for (Arc e : g.in(x))
    if (near < 0 && map_[g.tail(e)] >= 0) near = g.tail(e), leaves = true;
  for (Arc e : g.out(x))
    if (near < 0 && map_[g.head(e)] >= 0) near = g.head(e);
  auto add = [&](Vertex y) {
    if (inverse_[y] < 0 && permitted(x, y)) result.push_back(y);
  };
  if (near >= 0 && leaves) {
    for (Arc e : g.out(map_[near])) add(g.head(e));
  } else if (near >= 0) {
    for (Arc e : g.in(map_[near])) add(g.tail(e));
  } else {
    for (Vertex y : targets_) add(y);
  }
  spend(static_cast<std::int64_t>(near >= 0 ? g.out(x).size() + g.in(x).size() : targets_.size()));
  Vertex before = rules_.chains == Chains::kInCliques ? inverse_[x] : -1;
  if (before >= 0)
    for (Arc e : g.out(before)) mark_[g.head(e)] = 1;
  auto rank = [&](Vertex y) {
    if (!graph_.compute[x]) return y == x ? 0 : 1;  // switches stay if they can
    bool closes = map_[y] >= 0;
    return (closes == (rules_.chains == Chains::kShort) ? 0 : 1) + (mark_[y] ? 0 : 2);
  };
  std::stable_sort(result.begin(), result.end(), [&](Vertex a, Vertex b) { return rank(a) < rank(b); });
  if (before >= 0)
    for (Arc e : g.out(before)) mark_[g.head(e)] = 0;
  return result;
}

}  // namespace coppice
