// Workers that handle messages at their senders and receivers, one message at a time (see simulator.h).
//
// Cost: O(1) for each message at each end. Overflow: none; times are those of simulator.h.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "simulator/simulator.h"

namespace coppice {

class Workers {
 public:
  enum class Side : std::uint8_t { kSend, kReceive };
  /// A message at one of its ends.
  struct Turn {
    Message message;
    Side side;
  };

  /// Keeps references to `traffic` and `fabric`.
  Workers(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options);

  /// A worker has to handle the message where it is sent, or where it is received.
  bool sends(Message m) const { return handles({m, Side::kSend}); }
  bool receives(Message m) const { return handles({m, Side::kReceive}); }

  /// Time that a worker takes for the message as such, and with its bytes.
  double occupancy(Turn turn) const;
  double time(Turn turn) const;

  /// Takes a worker and says true, or waits for one.
  bool line_up(Turn turn);

  /// The worker of `turn` is free; it is taken at once by the one that has waited longest, if any.
  std::optional<Turn> release(Turn turn);

 private:
  struct Group {
    std::int32_t free;
    std::deque<Turn> waiting;
  };

  std::int32_t gpu_of(Turn turn) const;
  bool handles(Turn turn) const { return !groups_.empty() && gpu_of(turn) >= 0 && time(turn) > 0; }
  Group& group_of(Turn turn) { return groups_[static_cast<std::size_t>(fabric_.group[static_cast<std::size_t>(gpu_of(turn))])]; }

  const Traffic& traffic_;
  const Fabric& fabric_;
  double copy_rate_;
  std::vector<Group> groups_;
};

}  // namespace coppice
