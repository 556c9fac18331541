// Counters of packets as a dict by name.
#pragma once

#include "aggregation/node.h"
#include "bindings.h"

inline nb::dict dict_of(const coppice::aggregation::Counters& counters) {
  nb::dict found;
  for (std::size_t at = 0; at < coppice::aggregation::kCounts; ++at) {
    const std::string_view name = coppice::aggregation::kCountNames[at];
    found[nb::str(name.data(), name.size())] = counters.values[at];
  }
  return found;
}
