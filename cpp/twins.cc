#include "twins.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

namespace coppice {

namespace {

using Links = std::vector<std::tuple<bool, Vertex, std::int32_t>>;  // leaving, neighbour, label

Links links_of(const ColouredGraph& graph, Vertex v) {
  Links links;
  for (Arc e : graph.graph.out(v)) links.emplace_back(true, graph.graph.head(e), graph.label[e]);
  for (Arc e : graph.graph.in(v)) links.emplace_back(false, graph.graph.tail(e), graph.label[e]);
  std::sort(links.begin(), links.end());
  return links;
}

/// Sets of two or more twins among the vertices that are no compute vertices.
std::vector<std::vector<Vertex>> twins_of(const ColouredGraph& graph) {
  std::map<std::pair<std::int32_t, std::uint64_t>, std::vector<Vertex>> alike;
  for (Vertex v = 0; v < graph.graph.num_vertices(); ++v) {
    if (graph.compute[v]) continue;
    std::uint64_t hash = 0;
    for (auto [leaving, neighbour, label] : links_of(graph, v))
      hash = mixed(hash ^ mixed(static_cast<std::uint64_t>(neighbour) << 1 | leaving)) +
             static_cast<std::uint64_t>(label);
    alike[{graph.colour[v], hash}].push_back(v);
  }
  std::vector<std::vector<Vertex>> sets;
  for (auto& [key, members] : alike) {
    if (members.size() == 1) continue;
    Links links = links_of(graph, members.front());
    bool same = std::all_of(members.begin(), members.end(), [&](Vertex v) { return links_of(graph, v) == links; });
    if (same) sets.push_back(std::move(members));
  }
  return sets;
}

/// All images of the members under the group, each as a row in the order of the members; nothing where a member has
/// images that another lacks or where rows overlap, so that rows do not rotate consistently.
std::optional<std::vector<std::vector<Vertex>>> images_of(const std::vector<Vertex>& members,
                                                          const FreeAbelianGroup& group, std::size_t num_vertices) {
  std::vector<std::vector<Vertex>> rows{members};
  std::vector<std::pair<std::int64_t, std::size_t>> place(num_vertices, {-1, 0});  // row and position of a vertex
  for (std::size_t k = 0; k < members.size(); ++k) place[members[k]] = {0, k};
  for (std::size_t done = 0; done < rows.size(); ++done)
    for (const VertexMap& generator : group.generators()) {
      std::vector<Vertex> row;
      for (Vertex v : rows[done]) row.push_back(generator[v]);
      std::int64_t known = place[row.front()].first;
      for (std::size_t k = 0; k < row.size(); ++k) {
        if (known < 0 ? place[row[k]].first >= 0 : place[row[k]] != std::pair(known, k)) return std::nullopt;
        if (known < 0) place[row[k]] = {static_cast<std::int64_t>(rows.size()), k};
      }
      if (known < 0) rows.push_back(std::move(row));
    }
  return rows;
}

}  // namespace

void rotate_twins(const ColouredGraph& graph, FreeAbelianGroup& group) {
  if (group.order() == 1) return;
  std::vector<std::uint8_t> done(graph.graph.num_vertices(), 0);  // rotated with another set of its images
  for (const auto& members : twins_of(graph)) {
    if (done[members.front()]) continue;
    auto rows = images_of(members, group, done.size());
    if (!rows) continue;
    for (const auto& row : *rows)
      for (Vertex v : row) done[v] = 1;
    // Positions in a row are numbers of mixed radix, one digit for each generator that fixes the members.
    std::size_t place = 1;
    std::vector<VertexMap> generators = group.generators();
    for (std::size_t i = 0; i < generators.size(); ++i) {
      auto fixed = [&](Vertex v) { return generators[i][v] == v; };
      std::size_t radix = std::gcd(members.size() / place, static_cast<std::size_t>(group.orders()[i]));
      if (radix == 1 || !std::all_of(members.begin(), members.end(), fixed)) continue;
      for (const auto& row : *rows)
        for (std::size_t k = 0; k < row.size(); ++k) {
          bool wraps = k / place % radix == radix - 1;
          generators[i][row[k]] = row[wraps ? k - (radix - 1) * place : k + place];
        }
      place *= radix;
    }
    if (place > 1) group = FreeAbelianGroup(graph.compute, std::move(generators), group.orders());
  }
}

}  // namespace coppice
