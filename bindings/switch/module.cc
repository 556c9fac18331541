// The extension module coppice._switch: one init function per native unit.
#include "bindings.h"

void init_aggregation(nb::module_& m);
void init_switchagg(nb::module_& m);
void init_network(nb::module_& m);
void init_numerics(nb::module_& m);
void init_udp(nb::module_& m);

NB_MODULE(_switch, m) {
  m.doc() = "Native switches and workers of Coppice: protocols of in-network aggregation, and their numbers.";
  init_aggregation(m);
  init_switchagg(m);
  init_network(m);
  init_numerics(m);
  init_udp(m);
}
