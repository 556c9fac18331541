// A worker's request to join a job at a switch: the job as the worker sees it, and its encoding.
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
  std::uint64_t nonce = 0, cookie = 0;  // of the worker for this session of the job; of the switch for this address
  aggregation::Job job;  // its workers are those below all switches
  int members = 0;       // that join at this switch: workers, or switches below it; 0: all workers of the job
  std::string protocol;

  int member_count() const { return members == 0 ? job.workers : members; }
  int threads = 1, thread = 0;  // of the switch, each with a port: how many the job uses, and which of them this is
};

// At least `kAsking` bytes. Throws std::invalid_argument where the settings are too many for one packet.
std::vector<std::uint8_t> encoded(const Join& join);
// Nothing where the body is none; numbers are in range, but whether the switch can serve them is not looked at.
std::optional<Join> decoded(Bytes body, std::uint32_t job);
// In words what the second asks for that the first does not: nothing where both ask for the same.
std::string difference(const Join& first, const Join& second);

}  // namespace coppice::udp
