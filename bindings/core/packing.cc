// Bindings of packing/portfolio.h and packing/grown_together.h. Packed trees come out as edges between terminals: see packing/tree_edges.h.
#include "packing/portfolio.h"

#include "bindings.h"
#include "packing/grown_together.h"
#include "packing/tree_edges.h"

using namespace coppice;

static nb::dict to_dict(Packing packing, TreeEdges edges) {
  nb::dict stats;
  stats["checks"] = packing.stats.checks;
  stats["cuts"] = packing.stats.cuts;
  stats["trees_given_back"] = packing.stats.trees_given_back;
  stats["restarts"] = packing.stats.restarts;
  stats["halvings"] = packing.stats.halvings;
  stats["exact_steps"] = packing.stats.exact_steps;
  stats["flows"] = packing.stats.flows;
  nb::dict result;
  result["complete"] = packing.complete;
  result["violated"] = to_numpy(std::move(packing.violated));
  result["tree_root"] = to_numpy(std::move(packing.root));
  result["tree_weight"] = to_numpy(std::move(packing.multiplicity));
  result["tree_start"] = to_numpy(std::move(edges.tree_start));
  result["edge_src"] = to_numpy(std::move(edges.src));
  result["edge_dst"] = to_numpy(std::move(edges.dst));
  result["edge_path"] = to_numpy(std::move(edges.path));
  result["path_start"] = to_numpy(std::move(edges.path_start));
  result["path_nodes"] = to_numpy(std::move(edges.path_vertices));
  result["stats"] = stats;
  return result;
}

void init_packing(nb::module_& m) {
  m.def(
      "pack_trees",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Amount> roots, Column<bool> terminal,
         bool always_exhaustive, std::int64_t most_checks) {
        auto terminals = checked_terminals(num_nodes, src, dst, cap, roots, terminal);
        TreeEdges edges;
        Packing packing = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          PackingOptions options;
          options.always_exhaustive = always_exhaustive;
          options.most_checks = most_checks;
          Packing found = pack_best(graph, terminals, view(roots), view(cap), GroupAction::trivial(graph), options, stop);
          edges = tree_edges(graph, terminals, found);
          return found;
        });
        return to_dict(std::move(packing), std::move(edges));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("roots"), nb::arg("terminal"),
      nb::arg("always_exhaustive") = false, nb::arg("most_checks") = -1, "Spanning trees within integral capacities: see packing.h.");
  m.def(
      "pack_templates",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Column<Amount> roots, Column<bool> terminal,
         Column<Amount> orders, Column<std::int32_t> node_orbit, Column<Amount> node_element, Column<std::int32_t> link_orbit) {
        auto terminals = checked_terminals(num_nodes, src, dst, cap, roots, terminal);
        check_length("node_orbit", node_orbit.size(), static_cast<std::size_t>(num_nodes));
        check_length("node_element", node_element.size(), static_cast<std::size_t>(num_nodes));
        check_length("link_orbit", link_orbit.size(), src.size());
        TreeEdges edges;
        Packing packing = stoppable([&](const StopFlag& stop) {
          Digraph graph(num_nodes, view(src), view(dst));
          GroupAction action = GroupAction::of(view(orders), view(node_orbit), view(node_element), view(link_orbit));
          Packing found = pack_best(graph, terminals, view(roots), view(cap), action, {}, stop);
          edges = tree_edges(graph, terminals, found);
          return found;
        });
        return to_dict(std::move(packing), std::move(edges));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("roots"), nb::arg("terminal"), nb::arg("orders"),
      nb::arg("node_orbit"), nb::arg("node_element"), nb::arg("link_orbit"),
      "Trees for one root of each orbit that stand for all their images: see packing.h and group_action.h.");
  m.def(
      "grow_together",
      [](Vertex num_nodes, Column<Vertex> src, Column<Vertex> dst, Column<Amount> cap, Vertex root, std::int32_t trees) {
        check_length("dst", dst.size(), src.size());
        return to_numpy(stoppable([&](const StopFlag& stop) {
          return grow_together(Digraph(num_nodes, view(src), view(dst)), root, trees, view(cap), stop);
        }));
      },
      nb::arg("num_nodes"), nb::arg("src"), nb::arg("dst"), nb::arg("cap"), nb::arg("root"), nb::arg("trees"),
      "Links of spanning trees of one root, one tree after the other; none where they do not fit: see grown_together.h.");
}
