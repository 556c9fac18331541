// Workers that handle messages at their senders and receivers, one message at a time (see simulator.h).
//
// Cost: O(1) for each message at each end. Overflow: none; times are those of simulator.h.
#pragma once

#include <array>
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

  /// Keeps a reference to `traffic`.
  Workers(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options);

  /// A worker has to handle the message where it is sent, or where it is received.
  bool sends(Message m) const { return handles({m, Side::kSend}); }
  bool receives(Message m) const { return handles({m, Side::kReceive}); }

  /// Time that a worker takes for the message as such, and with its bytes.
  double occupancy(Turn turn) const { return end_of(turn).occupancy; }
  double time(Turn turn) const {
    const double copying = copy_rate_ > 0 ? on_grid(static_cast<double>(traffic_.bytes[turn.message]) / copy_rate_) : 0;
    return occupancy(turn) + copying;
  }

  /// Takes a worker and says true, or waits for one.
  bool line_up(Turn turn);

  /// The worker of `turn` is free; it is taken at once by the one that has waited longest, if any.
  std::optional<Turn> release(Turn turn);

 private:
  struct Group {
    std::int32_t free;
    std::deque<Turn> waiting;
  };

  /// An end of a route: whose workers handle messages there (-1: nobody's), and for how long.
  struct RouteEnd {
    std::int32_t group = -1;
    double occupancy = 0;
  };

  const RouteEnd& end_of(Turn turn) const { return ends_[static_cast<std::size_t>(turn.side)][static_cast<std::size_t>(traffic_.route[turn.message])]; }
  bool handles(Turn turn) const { return end_of(turn).group >= 0 && time(turn) > 0; }
  Group& group_of(Turn turn) { return groups_[static_cast<std::size_t>(end_of(turn).group)]; }

  const Traffic& traffic_;
  double copy_rate_;
  std::array<std::vector<RouteEnd>, 2> ends_;  // by side, of each route
  std::vector<Group> groups_;
};

}  // namespace coppice
