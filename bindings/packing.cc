// Bindings of packing/portfolio.h. Edges come out with their paths, each distinct path once.
#include "packing/portfolio.h"

#include <algorithm>

#include "bindings.h"

using namespace coppice;

namespace {

struct Columns {
  std::vector<std::int64_t> start{0};
  std::vector<Vertex> src, dst;
  std::vector<std::int32_t> path;
  std::vector<std::int64_t> path_start{0};
  std::vector<Vertex> path_nodes;
};

// Numbers each distinct node sequence once.
class PathTable {
 public:
  explicit PathTable(Columns& columns) : columns_(columns), slots_(1024, -1) {}

  std::int32_t number(std::span<const Vertex> nodes) {
    if (2 * columns_.path_start.size() > slots_.size()) grow();
    std::size_t slot = find(nodes);
    if (slots_[slot] < 0) {
      slots_[slot] = static_cast<std::int32_t>(columns_.path_start.size()) - 1;
      columns_.path_nodes.insert(columns_.path_nodes.end(), nodes.begin(), nodes.end());
      columns_.path_start.push_back(static_cast<std::int64_t>(columns_.path_nodes.size()));
    }
    return slots_[slot];
  }

 private:
  std::span<const Vertex> nodes_of(std::int32_t path) const {
    return {columns_.path_nodes.data() + columns_.path_start[path], columns_.path_nodes.data() + columns_.path_start[path + 1]};
  }

  std::size_t find(std::span<const Vertex> nodes) const {
    std::uint64_t hash = 1469598103934665603u;
    for (Vertex v : nodes) hash = (hash ^ static_cast<std::uint64_t>(v)) * 1099511628211u;
    std::size_t slot = (hash ^ hash >> 29) & (slots_.size() - 1);
    while (slots_[slot] >= 0) {
      auto known = nodes_of(slots_[slot]);
      if (known.size() == nodes.size() && std::equal(known.begin(), known.end(), nodes.begin())) break;
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  void grow() {
    slots_.assign(2 * slots_.size(), -1);
    for (std::size_t path = 0; path + 1 < columns_.path_start.size(); ++path)
      slots_[find(nodes_of(static_cast<std::int32_t>(path)))] = static_cast<std::int32_t>(path);
  }

  Columns& columns_;
  std::vector<std::int32_t> slots_;  // open addressing: path number or -1
};

Columns split_into_edges(const Digraph& graph, std::span<const std::uint8_t> terminal, const Packing& packing) {
  Columns columns;
  PathTable table(columns);
  std::vector<Vertex> nodes;
  for (std::size_t tree = 0; tree + 1 < packing.start.size(); ++tree) {
    for (std::int64_t i = packing.start[tree]; i < packing.start[tree + 1]; ++i) {
      Arc e = packing.arcs[i];
      if (nodes.empty()) nodes.push_back(graph.tail(e));
      nodes.push_back(graph.head(e));
      if (!terminal[graph.head(e)]) continue;
      columns.src.push_back(nodes.front());
      columns.dst.push_back(nodes.back());
      columns.path.push_back(table.number(nodes));
      nodes.clear();
    }
    columns.start.push_back(static_cast<std::int64_t>(columns.src.size()));
  }
  return columns;
}

}  // namespace

static nb::dict to_dict(Packing packing, Columns columns) {
  nb::dict stats;
  stats["checks"] = packing.stats.checks;
  stats["cuts"] = packing.stats.cuts;
  stats["trees_given_back"] = packing.stats.trees_given_back;
  stats["restarts"] = packing.stats.restarts;
  stats["halvings"] = packing.stats.halvings;
  stats["exact_steps"] = packing.stats.exact_steps;
  nb::dict result;
  result["complete"] = packing.complete;
  result["violated"] = to_numpy(std::move(packing.violated));
  result["tree_root"] = to_numpy(std::move(packing.root));
  result["tree_weight"] = to_numpy(std::move(packing.multiplicity));
  result["tree_start"] = to_numpy(std::move(columns.start));
  result["edge_src"] = to_numpy(std::move(columns.src));
  result["edge_dst"] = to_numpy(std::move(columns.dst));
  result["edge_path"] = to_numpy(std::move(columns.path));
  result["path_start"] = to_numpy(std::move(columns.path_start));
  result["path_nodes"] = to_numpy(std::move(columns.path_nodes));
  result["stats"] = stats;
  return result;
}

void init_packing(nb::module_& m) {
  m.def(
      "pack_trees",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Amount> roots, Column<bool> terminal,
         bool always_exhaustive) {
        auto terminals = checked_terminals(num_nodes, src, dst, cap, roots, terminal);
        Columns columns;
        Packing packing = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          PackingOptions options;
          options.always_exhaustive = always_exhaustive;
          Packing found = pack_best(graph, terminals, view(roots), view(cap), GroupAction::trivial(graph), options, stop);
          columns = split_into_edges(graph, terminals, found);
          return found;
        });
        return to_dict(std::move(packing), std::move(columns));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("roots"), nb::arg("terminal"),
      nb::arg("always_exhaustive") = false, "Spanning trees within integral capacities: see packing.h.");
  m.def(
      "pack_templates",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Amount> roots, Column<bool> terminal,
         Column<Amount> orders, Column<std::int32_t> node_orbit, Column<Amount> node_element, Column<std::int32_t> link_orbit) {
        auto terminals = checked_terminals(num_nodes, src, dst, cap, roots, terminal);
        check_length("node_orbit", node_orbit.size(), static_cast<std::size_t>(num_nodes));
        check_length("node_element", node_element.size(), static_cast<std::size_t>(num_nodes));
        check_length("link_orbit", link_orbit.size(), src.size());
        Columns columns;
        Packing packing = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          GroupAction action = GroupAction::of(view(orders), view(node_orbit), view(node_element), view(link_orbit));
          Packing found = pack_best(graph, terminals, view(roots), view(cap), action, {}, stop);
          columns = split_into_edges(graph, terminals, found);
          return found;
        });
        return to_dict(std::move(packing), std::move(columns));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("roots"), nb::arg("terminal"), nb::arg("orders"),
      nb::arg("node_orbit"), nb::arg("node_element"), nb::arg("link_orbit"),
      "Trees for one root of each orbit that stand for all their images: see packing.h and group_action.h.");
}
