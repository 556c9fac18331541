#include "symmetry/hubs.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "graph/traversal.h"
#include "symmetry/mapping.h"
#include "symmetry/refinement.h"

namespace coppice {

namespace {

constexpr std::size_t kAllSubsets = 6;   // up to this many switch cells all unions are tried
constexpr std::size_t kMostCells = 32;   // otherwise this many single cells and complements
constexpr std::size_t kMostClasses = 8;  // classes of parts that refinement does not tell apart
constexpr std::int64_t kStepsPerLink = 64;

using Parts = std::vector<std::vector<Vertex>>;

/// Parts that are alike: members[i][k] is the image in part i of vertex members[0][k] of the first part.
struct AlikeParts {
  Parts members;
  bool compute;  // the parts hold compute vertices
};

/// Sets of switch cells to try, as flags per vertex; small ones first, since they leave more to move.
std::vector<std::vector<std::uint8_t>> hub_sets(const ColouredGraph& graph) {
  std::vector<std::int32_t> cells;
  for (Vertex v = 0; v < graph.graph.num_vertices(); ++v)
    if (!graph.compute[v]) cells.push_back(graph.colour[v]);
  std::sort(cells.begin(), cells.end());
  cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
  std::size_t k = cells.size();
  std::vector<std::vector<std::uint8_t>> choices;  // flag per cell
  choices.emplace_back(k, 0);
  if (k > 0) choices.emplace_back(k, 1);
  if (k <= kAllSubsets) {
    for (unsigned mask = 1; mask + 1 < 1u << k; ++mask) {
      auto& choice = choices.emplace_back(k, 0);
      for (std::size_t i = 0; i < k; ++i) choice[i] = mask >> i & 1;
    }
  } else {
    for (std::uint8_t base : {0, 1})
      for (std::size_t i = 0; i < std::min(k, kMostCells); ++i) choices.emplace_back(k, base)[i] = 1 - base;
  }
  std::vector<std::vector<std::uint8_t>> sets;
  for (const auto& choice : choices) {
    auto& set = sets.emplace_back(graph.graph.num_vertices(), 0);
    for (Vertex v = 0; v < graph.graph.num_vertices(); ++v) {
      if (graph.compute[v]) continue;
      auto cell = std::lower_bound(cells.begin(), cells.end(), graph.colour[v]) - cells.begin();
      set[v] = choice[cell];
    }
  }
  std::vector<std::pair<std::ptrdiff_t, std::size_t>> by_size;
  for (std::size_t i = 0; i < sets.size(); ++i) by_size.emplace_back(std::count(sets[i].begin(), sets[i].end(), 1), i);
  std::sort(by_size.begin(), by_size.end());
  std::vector<std::vector<std::uint8_t>> sorted;
  for (auto [size, i] : by_size) sorted.push_back(std::move(sets[i]));
  return sorted;
}

bool has_compute(const ColouredGraph& graph, std::span<const Vertex> part) {
  return std::any_of(part.begin(), part.end(), [&](Vertex v) { return graph.compute[v] != 0; });
}

/// Sorts the parts into classes of alike parts; empty where a part with compute vertices has no fellow.
std::vector<AlikeParts> classes_of(const ColouredGraph& graph, Parts parts, std::span<const std::uint8_t> hub,
                                   Budget& budget) {
  // A hub in a cell of its own: equal cells then mean equal links with every hub.
  Refinement refinement(graph, {}, 1);
  refinement.start(graph.colour, true);
  for (Vertex v = 0; v < graph.graph.num_vertices(); ++v)
    if (hub[v]) refinement.individualise(std::span(&v, 1));
  refinement.refine(budget);
  std::vector<std::int32_t> cell = refinement.cells(0);

  std::map<std::vector<std::int32_t>, Parts> alike_by_cells;
  for (auto& part : parts) {
    std::sort(part.begin(), part.end(),
              [&](Vertex a, Vertex b) { return cell[a] != cell[b] ? cell[a] < cell[b] : a < b; });
    std::vector<std::int32_t> key;
    for (Vertex v : part) key.push_back(cell[v]);
    alike_by_cells[key].push_back(std::move(part));
  }
  std::vector<AlikeParts> classes;
  MappingSearch search(graph);
  for (auto& [key, members] : alike_by_cells) {
    std::size_t first_class = classes.size();
    for (auto& part : members) {
      std::int64_t links = 16;
      for (Vertex v : part) links += static_cast<std::int64_t>(graph.graph.out(v).size() + graph.graph.in(v).size());
      MappingSearch::Rules rules;
      rules.source_colour = cell;
      rules.target_colour = cell;
      rules.targets = part;
      rules.steps = kStepsPerLink * links;
      bool found = false;
      for (std::size_t c = first_class; c < classes.size() && !found; ++c) {
        auto& fellows = classes[c].members;
        rules.sources = fellows.front();
        found = search.run(rules, {-1, -1}, budget, [](const VertexMap&) { return true; });
        if (!found) continue;
        auto& image = fellows.emplace_back();
        for (Vertex v : fellows.front()) image.push_back(search.map()[v]);
      }
      if (found) continue;
      if (classes.size() - first_class == kMostClasses) return {};
      bool compute = has_compute(graph, part);
      classes.push_back({{std::move(part)}, compute});
    }
    for (std::size_t c = first_class; c < classes.size(); ++c)
      if (classes[c].compute && classes[c].members.size() == 1) return {};
  }
  return classes;
}

/// Numbers of parts by size must have a common divisor for any cycles to exist.
bool may_move(const ColouredGraph& graph, const Parts& parts) {
  std::map<std::size_t, std::int64_t> count;
  for (const auto& part : parts)
    if (has_compute(graph, part)) ++count[part.size()];
  std::int64_t common = 0;
  for (auto [size, number] : count) common = std::gcd(common, number);
  return common > 1;
}

HubReduction reduction(const ColouredGraph& graph, const std::vector<AlikeParts>& classes, std::int64_t n) {
  const Digraph& g = graph.graph;
  HubReduction result;
  result.order = n;
  result.shift.resize(g.num_vertices());
  std::iota(result.shift.begin(), result.shift.end(), 0);
  std::vector<std::vector<Vertex>> copies(g.num_vertices());  // of kept vertices
  std::vector<std::uint8_t> moved(g.num_vertices(), 0);
  for (const AlikeParts& alike : classes) {
    // Parts without compute vertices need not move freely: theirs are cycles of any length that divides n.
    auto length = static_cast<std::size_t>(std::gcd(n, static_cast<std::int64_t>(alike.members.size())));
    for (std::size_t first = 0; length > 1 && first < alike.members.size(); first += length)
      for (std::size_t k = 0; k < alike.members.front().size(); ++k)
        for (std::size_t i = 0; i < length; ++i) {
          Vertex v = alike.members[first + i][k];
          copies[alike.members[first][k]].push_back(v);
          moved[v] = 1;
          result.shift[v] = alike.members[first + (i + 1) % length][k];
        }
  }
  std::vector<Vertex> index(g.num_vertices(), -1), tail, head;
  std::map<std::pair<std::int32_t, std::size_t>, std::int32_t> colours;  // of a colour and a number of copies
  ColouredGraph& quotient = result.quotient;
  for (Vertex v = 0; v < g.num_vertices(); ++v) {
    if (moved[v] && copies[v].empty()) continue;
    index[v] = static_cast<Vertex>(result.copies.size());
    if (!moved[v]) copies[v].push_back(v);
    result.copies.push_back(std::move(copies[v]));
    auto kind = std::pair(graph.colour[v], result.copies.back().size());
    quotient.colour.push_back(colours.emplace(kind, static_cast<std::int32_t>(colours.size())).first->second);
    quotient.compute.push_back(graph.compute[v]);
  }
  for (Arc e = 0; e < g.num_arcs(); ++e) {
    if (index[g.tail(e)] < 0 || index[g.head(e)] < 0) continue;
    tail.push_back(index[g.tail(e)]);
    head.push_back(index[g.head(e)]);
    quotient.label.push_back(graph.label[e]);
  }
  quotient.graph = Digraph(static_cast<Vertex>(result.copies.size()), tail, head);
  return result;
}

}  // namespace

VertexMap HubReduction::lifted(const VertexMap& map) const {
  VertexMap result(shift.size());
  for (std::size_t q = 0; q < copies.size(); ++q)
    for (std::size_t i = 0; i < copies[q].size(); ++i) result[copies[q][i]] = copies[map[q]][i];
  return result;
}

std::optional<HubReduction> reduce_by_hubs(const ColouredGraph& graph, Budget& budget) {
  for (const auto& hub : hub_sets(graph)) {
    budget.spend(graph.graph.num_arcs());
    Parts parts = parts_without(graph.graph, hub);
    if (!may_move(graph, parts)) continue;
    std::vector<AlikeParts> classes = classes_of(graph, std::move(parts), hub, budget);
    std::int64_t n = 0;
    for (const AlikeParts& alike : classes)
      if (alike.compute) n = std::gcd(n, static_cast<std::int64_t>(alike.members.size()));
    if (n > 1) return reduction(graph, classes, n);
  }
  return std::nullopt;
}

}  // namespace coppice
