// The extension module coppice._core: one init function per native unit.
#include "bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "Native core of Coppice: arrays in, arrays out.";
  init_aggregation(m);
  init_switchagg(m);
  init_breadth_first(m);
  init_feasibility(m);
  init_numerics(m);
  init_network(m);
  init_packing(m);
  init_path_flow(m);
  init_put_signal(m);
  init_routing(m);
  init_shm(m);
  init_simulator(m);
  init_symmetry(m);
  init_tasks(m);
  init_tacos(m);
  init_udp(m);
}
