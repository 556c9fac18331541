// Model checker of the protocols: drives the state machines themselves through all that a network may do to them.
//
// From the first packets on, every packet under way may arrive next, be lost, or arrive and stay under way as a copy, and
// every node may be woken: as often as the budgets allow. States are found breadth-first and told apart by what the nodes
// save, what is under way and what is left of the budgets, so each is searched once and a fault is reached by the fewest
// events. In each state that is reached
//   * a worker that is done has the sum of all workers, exactly;
//   * a continuation without further faults ends: all packets arrive and all time-outs are waited for until every worker
//     is done, nothing is under way and no switch holds a sum.
// Time-outs cost no budget while nothing is under way, in the order in which they are due; earlier ones (a time-out that was
// too short, a clock that is too fast) do.
//
// States are compared by 128-bit hashes of their bytes: two different ones are taken for one with a probability below
// 10^-24 for a million states.
#pragma once

#include <string>
#include <vector>

#include "aggregation/protocols.h"
#include "core/stop.h"

namespace coppice::aggregation {

struct Search {
  Job job;                            // its give-up timeout is taken as endless
  std::vector<int> groups;            // workers below each switch, see assembly.h
  std::vector<std::int64_t> tensors;  // elements of each all-reduce; int32
  bool reordering = true;             // else packets from one node to another arrive in their order
  int losses = 1;
  int duplicates = 1;
  int early_timeouts = 1;
  int most_events = 1'000'000;        // depth
  std::int64_t most_states = 1'000'000;
};

struct Finding {
  std::string fault;               // empty: none was found
  std::vector<std::string> trace;  // the events that lead to it, a line each
  std::int64_t states = 0, events = 0;
  int depth = 0;                   // of the search: events from the first state
  bool whole = true;               // every state within the budgets was searched
};

// Throws std::invalid_argument where the protocol cannot serve the job, and Cancelled where `stop` says so.
Finding explore(const Protocol& protocol, const Search& search, const StopFlag& stop = {});

}  // namespace coppice::aggregation
