// The extension module coppice._core: one init function per native unit.
#include "bindings.h"

void init_breadth_first(nb::module_& m);
void init_circuits(nb::module_& m);
void init_feasibility(nb::module_& m);
void init_forests(nb::module_& m);
void init_low_trees(nb::module_& m);
void init_nccl_search(nb::module_& m);
void init_packing(nb::module_& m);
void init_path_flow(nb::module_& m);
void init_quickest(nb::module_& m);
void init_recreate(nb::module_& m);
void init_routing(nb::module_& m);
void init_simulator(nb::module_& m);
void init_symmetry(nb::module_& m);
void init_tacos(nb::module_& m);
void init_tasks(nb::module_& m);
void init_tour(nb::module_& m);
void init_alltoallv(nb::module_& m);
void init_two_stage(nb::module_& m);

NB_MODULE(_core, m) {
  m.doc() = "Native core of Coppice, planning and simulation: arrays in, arrays out.";
  init_breadth_first(m);
  init_circuits(m);
  init_feasibility(m);
  init_forests(m);
  init_low_trees(m);
  init_nccl_search(m);
  init_packing(m);
  init_path_flow(m);
  init_quickest(m);
  init_recreate(m);
  init_routing(m);
  init_simulator(m);
  init_symmetry(m);
  init_tacos(m);
  init_tasks(m);
  init_tour(m);
  init_alltoallv(m);
  init_two_stage(m);
}
