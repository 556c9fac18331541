// Jobs of SwitchML, and values in its packets, for its tests.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregation/bytes.h"
#include "aggregation/node.h"
#include "aggregation/switchml.h"

namespace coppice::aggregation::testing {

inline std::int32_t value_of(const std::vector<std::uint8_t>& packet, int i) {
  return static_cast<std::int32_t>(load<std::uint32_t>(packet.data() + SwitchMlPacket::kHead + 4 * i));
}

inline Job job_of(int workers, int slots, int values = 64) {
  Job job;
  job.workers = workers;
  job.slots = job.window = slots;
  job.values = values;
  return job;
}

}  // namespace coppice::aggregation::testing
