// Streams of packets over links that lose, double and reorder them: sequence numbers, acknowledgements that say which
// packets beyond the first missing one have arrived, and packets sent again.
//
// A stream has one sender and one or several receivers; a packet is kept until every receiver has it. Sequence numbers
// have 32 bits and wrap. A receiver may take packets out of order, each one once; how far beyond the first missing one
// is the window, 64 packets at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/node.h"

namespace coppice::aggregation {

inline constexpr int kMostWindow = 64;

// How far `a` lies after `b` in a circle of 2^32.
inline std::int32_t distance(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b); }

enum class Arrival : std::uint8_t { fresh, duplicate, future };

// What one receiver has of a stream.
class ReceiveWindow {
 public:
  explicit ReceiveWindow(std::uint32_t first = 0) : next_(first) {}
  Arrival look(std::uint32_t sequence) const;
  // Only of a packet that is `fresh`.
  void take(std::uint32_t sequence);
  std::uint32_t next() const { return next_; }      // the first packet that is missing
  std::uint64_t beyond() const { return beyond_; }  // bit i: packet next + 1 + i has arrived
  void save(StateWriter& state) const;

 private:
  std::uint32_t next_;
  std::uint64_t beyond_ = 0;
};

enum class Acknowledged : std::uint8_t { nothing_new, progress, impossible };

class SendWindow {
 public:
  SendWindow(std::vector<Endpoint> receivers, int window, std::size_t most_bytes, std::uint32_t first, Time timeout,
             Time give_up_timeout);
  std::uint32_t next() const { return next_; }
  std::uint32_t base() const { return base_; }
  bool idle() const { return base_ == next_; }
  // Whether packet `sequence` has a place: it may lie beyond `next` where packets are passed on out of order.
  bool fits(std::uint32_t sequence) const {
    return distance(sequence, base_) >= 0 && distance(sequence, base_) < window_;
  }
  bool room() const { return fits(next_); }
  // The place of a packet that fits, of `most_bytes`.
  std::uint8_t* place(std::uint32_t sequence) { return packets_.data() + slot(sequence) * most_bytes_; }
  Bytes packet(std::uint32_t sequence) const {
    return {packets_.data() + slot(sequence) * most_bytes_, sizes_[slot(sequence)]};
  }
  void send(std::uint32_t sequence, std::size_t size, Time now, Outbox& out, Counters& counters);
  // `again`: the receiver had refused packets and takes them now.
  Acknowledged acknowledge(std::size_t receiver, std::uint32_t next, std::uint64_t beyond, bool again, Time now,
                           Outbox& out, Counters& counters);
  Time deadline() const { return due_; }
  void wake(Time now, Outbox& out, Counters& counters);
  void save(Time now, StateWriter& state) const;

 private:
  struct Receiver {
    Endpoint to;
    std::uint32_t next;         // acknowledged up to here
    std::uint64_t beyond = 0;   // acknowledged beyond: bit i is packet next + 1 + i
    std::uint64_t hurried = 0;  // bit i: packet next + i was sent again before its time
    Time since = 0;             // when it was heard last, or got something to answer
  };
  std::size_t slot(std::uint32_t sequence) const { return sequence & mask_; }
  bool lacks(const Receiver& receiver, std::uint32_t sequence) const;
  bool send_missing(Receiver& receiver, std::uint64_t which, Outbox& out, Counters& counters);

  int window_;
  std::uint32_t mask_;  // places are a power of two, so that they go round with the sequence numbers
  std::size_t most_bytes_;
  Time timeout_, give_up_timeout_;
  std::uint32_t base_, next_;
  Time due_ = kNever;
  int backoff_ = 0;
  std::vector<Receiver> receivers_;
  std::vector<Endpoint> everyone_;
  std::vector<std::uint8_t> packets_;
  std::vector<std::size_t> sizes_;  // 0: not there yet
};

}  // namespace coppice::aggregation
