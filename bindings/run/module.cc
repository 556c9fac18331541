// The extension module coppice._run: one init function per native unit.
#include "bindings.h"

void init_put_signal(nb::module_& m);
void init_shm(nb::module_& m);

NB_MODULE(_run, m) {
  m.doc() = "Native executors of Coppice: ranks in shared memory, programs of puts and signals.";
  init_put_signal(m);
  init_shm(m);
}
