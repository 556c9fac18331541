// Binding of graph/tour.h.
#include "graph/tour.h"

#include "bindings.h"

using namespace coppice;

void init_tour(nb::module_& m) {
  m.def(
      "cheapest_tour",
      [](std::int32_t points, Column<double> cost) {
        std::vector<std::int32_t> tour;
        {
          nb::gil_scoped_release release;
          tour = cheapest_tour(points, view(cost));
        }
        return to_numpy(std::move(tour));
      },
      nb::arg("points"), nb::arg("cost"),
      "The cheapest closed tour through 2 to 16 points, from point 0 on; empty where there is none.");
}
