// Registry of the protocols by name, from which simulation, search and sockets make switches and workers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "aggregation/node.h"

namespace coppice::aggregation {

struct Protocol {
  std::string_view name;
  // A switch with so many slots in all.
  std::unique_ptr<Aggregator> (*make_switch)(int slots);
  // The worker `index` of a job; `above` is its switch.
  std::unique_ptr<Worker> (*make_worker)(const Job& job, int index, Endpoint above);
  // The server that the protocol falls back to, for the same children as the switch; none where the protocol has none.
  std::unique_ptr<Aggregator> (*make_server)() = nullptr;
  // A packet in words, for who reads what went wrong.
  std::string (*describe)(Bytes packet) = nullptr;
};

std::span<const Protocol> protocols();
// Throws std::invalid_argument with the names that there are.
const Protocol& protocol(std::string_view name);

}  // namespace coppice::aggregation
