// All-reduces of one job over a simulated lossy network, with every sum checked: what a protocol does, in figures.
#pragma once

#include <string>
#include <vector>

#include "core/stop.h"
#include "packet_network/network.h"

namespace coppice::aggregation {

struct Experiment {
  std::string protocol = "switchml";
  Job job;
  std::vector<int> groups;           // workers below each switch, see assembly.h
  Link link;                         // of the workers
  Link uplink;                       // between switches, and to the server
  double switch_packets_per_s = 0;   // that a switch takes in; 0: no limit
  double worker_packets_per_s = 0;
  std::vector<std::int64_t> tensors; // elements of each all-reduce, one after the other
  std::vector<Time> starts;          // of the workers; none: all at 0
  std::uint64_t seed = 0;            // of the values and the faults
  int crash_worker = -1;             // stops at `crash_at`
  Time crash_at = 0;
  int restart_switch = -1;           // loses all that it knows at `restart_at`; switches are numbered leaves first
  Time restart_at = 0;
  Time limit = 3'600'000'000'000;    // of simulated time
};

struct Outcome {
  std::vector<Time> finish;           // by worker, of the last tensor; kNever of those that did not finish
  std::vector<std::string> failures;  // by worker; empty where there is none
  std::int64_t wrong = 0;             // elements of int32 tensors that are not the sum, of all workers that have finished
  double worst = 0;                   // of float32: greatest difference from the sum, in units of the greatest value
  std::int64_t slots_in_use = 0;      // of all switches, at the end
  std::vector<int> waited_for;        // workers that switches waited for at the end
  Time end = 0;                       // of the last event
  std::int64_t delivered = 0;         // packets driven into nodes
  Traffic up, down;                   // towards the switches and the server, and towards the workers
  Counters workers, switches, server; // summed over nodes
};

// Inputs are drawn from the seed: integers whose sums do not leave int32, so that protocols whose adders wrap and those
// whose adders saturate give the same; floats from -1 to 1. Throws std::invalid_argument where the protocol cannot serve
// the job, and Cancelled where `stop` says so.
Outcome run_experiment(const Experiment& experiment, const StopFlag& stop = {});

}  // namespace coppice::aggregation
