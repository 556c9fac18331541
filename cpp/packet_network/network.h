// Discrete-event simulation of a network of nodes: links with a rate, a latency and a queue, that lose, double and reorder
// packets by seed.
//
// Time is counted in picoseconds inside, as a packet takes a fraction of a nanosecond on a fast link; nodes see
// nanoseconds. Events at the same time happen in the order in which they were made, and faults are drawn in the order of
// the packets, so that a seed gives the same run on every machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "aggregation/node.h"

namespace coppice::aggregation {

// One direction of a link.
struct Link {
  double bytes_per_s = 12.5e9;
  Time latency = 1'000;             // one way, without the time on the wire
  std::int64_t queue_bytes = 0;     // waiting before the link, beyond which packets are dropped; 0: no limit
  std::int64_t overhead_bytes = 0;  // on the wire, of each packet besides its own bytes
  double drop = 0, duplicate = 0, reorder = 0;  // probabilities, of each packet on its own
  Time reorder_delay = 10'000;                  // at most, of a packet that is overtaken
};

struct Traffic {
  std::int64_t packets = 0, bytes = 0;  // taken by the link, with the overhead of each packet
  std::int64_t dropped = 0;             // by chance
  std::int64_t overflowed = 0;          // no place in the queue
  std::int64_t duplicated = 0, reordered = 0;
  Traffic& operator+=(const Traffic& other);
};

class Network {
 public:
  explicit Network(std::uint64_t seed) : random_(seed) {}

  // Nodes are numbered from 0; a rate of packets per second says how fast the node takes them in (0: at once).
  Endpoint add(std::unique_ptr<Node> node, double packets_per_s = 0);
  // Both directions. The links have to join all nodes to a tree.
  void join(Endpoint a, Endpoint b, const Link& link);

  Node& node(Endpoint at) { return *nodes_[static_cast<std::size_t>(at)].node; }
  // Calls `work` with the node and what it sends through.
  void drive(Endpoint at, const std::function<void(Node&, Time, Outbox&)>& work);
  // Puts another node into the place: it knows nothing of what the one before knew.
  void replace(Endpoint at, std::unique_ptr<Node> node);
  // From now on the node neither receives nor sends.
  void stop(Endpoint at);
  // Calls `work` at that time, or now if it has passed.
  void call(Time when, std::function<void()> work);

  // One event. Returns the node that was driven, kNobody where none was, and kOver when nothing is left to happen.
  static constexpr Endpoint kOver = -2;
  Endpoint step();
  Time now() const { return now_ / 1000; }
  std::int64_t under_way() const { return under_way_; }  // packets on links or waiting at nodes
  std::int64_t delivered() const { return delivered_; }
  // Of the direction from a to b, which are joined.
  const Traffic& traffic(Endpoint a, Endpoint b) const { return links_[static_cast<std::size_t>(way(a, b))].traffic; }

 private:
  enum class Kind : std::uint8_t { arrival, handling, waking, call };
  struct Event {
    std::int64_t at;
    std::uint64_t order;
    std::uint32_t what;  // packet, or call
    Endpoint node;
    Kind kind;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Place {
    std::unique_ptr<Node> node;
    std::int64_t handling = 0;  // of a packet
    std::int64_t free = 0;      // when all that arrived is handled
    std::int64_t waking = -1;   // when the next event to wake it is due; -1: none is
    bool stopped = false;
  };
  struct Way {
    Endpoint to;
    Link link;
    double ps_per_byte;
    std::int64_t free = 0;
    Traffic traffic;
  };
  struct Packet {
    Endpoint from, to;
    std::uint32_t size;
    std::vector<std::uint8_t> bytes;  // keeps its memory when the packet is gone
  };
  class Post;

  std::int32_t way(Endpoint from, Endpoint to) const;
  void find_ways();
  void push(std::int64_t at, Kind kind, Endpoint node, std::uint32_t what);
  std::uint32_t new_packet(Endpoint from, Endpoint to, Bytes bytes);
  void forward(Endpoint at, std::uint32_t packet);
  void deliver(Endpoint at, std::uint32_t packet);
  void watch(Endpoint at, std::int64_t earliest = 0);
  double chance();

  std::vector<Place> nodes_;
  std::vector<Way> links_;
  std::vector<std::vector<std::int32_t>> links_of_;  // of each node, those that leave it
  std::vector<std::int32_t> next_;                   // [at][to]: the link to take; made at the first event
  std::vector<Packet> packets_;
  std::vector<std::uint32_t> unused_;
  std::vector<Event> events_;  // a heap
  std::vector<std::function<void()>> calls_;
  std::int64_t now_ = 0, under_way_ = 0, delivered_ = 0;
  std::uint64_t order_ = 0, random_;
};

}  // namespace coppice::aggregation
