// What a worker wants of a switch when it joins a job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "udp/envelope.h"
#include "udp/wire.h"

namespace coppice::udp {

// Bodies of what workers ask: as long as the longest answer, so that nobody gets more than was sent in their name.
inline constexpr std::size_t kAsking = 480;
inline constexpr std::size_t kAskingStatus = 1400;
inline constexpr std::size_t kMostWords = 250;

struct Join {
  std::uint64_t nonce = 0, cookie = 0;  // of the worker for this life of the job; of the switch for this address
  aggregation::Job job;  // its workers are those below all switches
  int members = 0;       // that join at this switch: workers, or switches below it; 0: all workers of the job
  std::string protocol;

  int seats() const { return members == 0 ? job.workers : members; }
  int lanes = 1, lane = 0;  // ports of the switch that the job uses, and which of them this is
};

// At least `kAsking` bytes. Throws std::invalid_argument where the settings are too many for one packet.
std::vector<std::uint8_t> encoded(const Join& join);
// Nothing where the body is none; numbers are in range, but whether the switch can serve them is not looked at.
std::optional<Join> decoded(Bytes body, std::uint32_t job);
// In words what the second asks for that the first does not: nothing where both ask for the same.
std::string difference(const Join& first, const Join& second);

}  // namespace coppice::udp
