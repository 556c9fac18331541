// Packets per second of the simulated network, all machines and checks of sums included, on one core.
#include <cstdio>

#include "packet_network/experiment.h"
#include "testing/perf.h"

using namespace coppice::aggregation;

int main() {
  for (int workers : {2, 8, 32}) {
    for (double drop : {0.0, 0.01}) {
      Experiment e;
      e.job.workers = workers;
      e.job.slots = e.job.window = 256;
      e.job.values = 64;
      e.groups = {workers};
      e.tensors = {64 * (1 << 19) / workers};
      e.link.drop = drop;
      e.link.overhead_bytes = 66;
      std::int64_t packets = 0;
      const double took = coppice::perf::seconds([&] { packets = run_experiment(e).delivered; });
      char what[80];
      std::snprintf(what, sizeof what, "%2d workers, loss %.2f: %.1f million packets/s", workers, drop,
                    static_cast<double>(packets) / took / 1e6);
      coppice::perf::report(what, took, 1.0);
    }
  }
  return 0;
}
