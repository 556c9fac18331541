// Binding of verification/forest_walk.h and rehanging/rehanging.h.
#include <optional>

#include "bindings.h"
#include "rehanging/rehanging.h"
#include "verification/forest_walk.h"

using namespace coppice;

namespace {

/// Columns of trees and their paths.
template <typename Forest>
void fill_trees(ColumnRecord& record, Forest& forest) {
  record.fill("tree_root", forest.tree_root);
  record.fill("tree_weight", forest.tree_weight);
  record.fill("tree_phase", forest.tree_phase);
  record.fill("tree_start", forest.tree_start);
  record.fill("edge_src", forest.edge_src);
  record.fill("edge_dst", forest.edge_dst);
  record.fill("edge_path", forest.edge_path);
  record.fill("path_start", forest.path_start);
  record.fill("path_nodes", forest.path_nodes);
}

/// A damaged forest, with the columns that it looks at.
struct HeldDamage {
  explicit HeldDamage(nb::handle given) : record(given) {
    Network network{};
    network.num_nodes = record.get<Vertex>("num_nodes");
    record.fill("src", network.src);
    record.fill("dst", network.dst);
    record.fill("rank", network.rank);
    record.fill("cost", network.cost);
    ForestColumns forest;
    fill_trees(record, forest);
    nb::gil_scoped_release release;
    damage.emplace(network, forest);
  }

  ColumnRecord record;
  std::optional<Damage> damage;
};

}  // namespace

void init_forests(nb::module_& m) {
  m.def(
      "walk_forest",
      [](nb::handle given) -> nb::object {
        ColumnRecord record(given);
        ForestToWalk forest{};
        forest.num_nodes = record.get<Vertex>("num_nodes");
        record.fill("src", forest.src);
        record.fill("dst", forest.dst);
        record.fill("rank", forest.rank);
        fill_trees(record, forest);
        std::optional<WalkedForest> found;
        {
          nb::gil_scoped_release release;
          found = walk_forest(forest);
        }
        if (!found) return nb::none();
        return nb::make_tuple(to_numpy(std::move(found->load)), to_numpy(std::move(found->height)));
      },
      nb::arg("forest"), "Load of every link and height of every tree; None where the forest does not pass.");

  nb::class_<HeldDamage>(m, "DamagedForest", "A forest on a network that some of its paths may no longer fit.")
      .def(nb::init<nb::handle>(), nb::arg("columns"))
      .def_prop_ro("load", [](const HeldDamage& held) { return to_numpy(held.damage->load); })
      .def_prop_ro("broken", [](const HeldDamage& held) { return to_numpy(held.damage->broken); })
      .def(
          "moved",
          [](const HeldDamage& held, std::int64_t scale, Column<Amount> limit, bool low, std::int32_t tallest) -> nb::object {
            check_length("limit", limit.size(), held.damage->load.size());
            Rehanging attempt(*held.damage, {scale, {limit.data(), limit.data() + limit.size()}, low, tallest});
            MadeForest made;
            if (!stoppable([&](const StopFlag& stop) {
                  if (!attempt.run(stop)) return false;
                  made = attempt.forest();
                  return true;
                }))
              return nb::none();
            nb::dict columns;
            columns["tree_root"] = to_numpy(std::move(made.tree_root));
            columns["tree_weight"] = to_numpy(std::move(made.tree_weight));
            columns["tree_phase"] = to_numpy(std::move(made.tree_phase));
            columns["tree_start"] = to_numpy(std::move(made.tree_start));
            columns["edge_src"] = to_numpy(std::move(made.edge_src));
            columns["edge_dst"] = to_numpy(std::move(made.edge_dst));
            columns["edge_path"] = to_numpy(std::move(made.edge_path));
            columns["path_start"] = to_numpy(std::move(made.path_start));
            columns["path_nodes"] = to_numpy(std::move(made.path_nodes));
            return nb::make_tuple(columns, to_numpy(attempt.load()), attempt.num_moved(), attempt.num_rerouted(),
                                  attempt.num_split());
          },
          nb::arg("scale"), nb::arg("limit"), nb::arg("low"), nb::arg("tallest"),
          "Columns of the forest with its trees moved within limits, the load of every link, and how many trees were "
          "changed, rerouted only, and split off; None where not all found a place.");
}
