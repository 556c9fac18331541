// Binding of low_trees/low_trees.h.
#include "low_trees/low_trees.h"

#include "bindings.h"

using namespace coppice;

namespace {

nb::tuple edges(LowTree tree) {
  return nb::make_tuple(to_numpy(std::move(tree.sender)), to_numpy(std::move(tree.receiver)));
}

}  // namespace

void init_low_trees(nb::module_& m) {
  m.def(
      "grow_low_tree",
      [](std::int32_t num_ranks, Column<double> cost, Column<double> far, std::int32_t root, std::int32_t height,
         std::int32_t turn) {
        return edges(grow_low_tree({num_ranks, view(cost)}, view(far), root, height, turn));
      },
      nb::arg("num_ranks"), nb::arg("cost"), nb::arg("far"), nb::arg("root"), nb::arg("height"), nb::arg("turn"),
      "A tree of bounded height grown by cheapest paths: (sender, receiver); without edges where some rank does not "
      "fit.");
  m.def(
      "rehung_low_tree",
      [](std::int32_t num_ranks, Column<double> cost, Column<std::int32_t> sender, Column<std::int32_t> receiver,
         std::int32_t root, std::int32_t height) {
        if (view(sender).size() != view(receiver).size())
          throw std::invalid_argument("a low tree needs a sender for each receiver");
        return edges(rehung_low_tree({num_ranks, view(cost)}, {copied(sender), copied(receiver)}, root, height));
      },
      nb::arg("num_ranks"), nb::arg("cost"), nb::arg("sender"), nb::arg("receiver"), nb::arg("root"), nb::arg("height"),
      "The tree with ranks below other ones where that is cheaper within the height: (sender, receiver).");
}
