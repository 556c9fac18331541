// The event queue of the simulator: a heap of four children, ordered by time, then kind, then message.
//
// Cost: O(log events) for each one that comes or goes. An event is compared as one number, without a branch: which child
// is least cannot be foreseen.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "core/wide.h"

namespace coppice {

/// What happens to a message (kFree: to a link); of simultaneous events those come first that let others start, and a
/// link that is free looks at all that have come to it. The head of a message without bytes comes early: the message may
/// arrive at the same instant.
enum class EventKind : std::uint8_t {
  kArrived = 0,
  kDone = 1,
  kLeft = 2,
  kHandled = 3,
  kDrained = 4,
  kStream = 5,
  kDue = 6,
  kEmptyHead = 7,
  kHead = 8,
  kFree = 9,
};

struct Event {
  double time;          // never negative, and no -0.0
  std::uint64_t order;  // kind, then message

  Event(double when, EventKind what, std::int32_t message)
      : time(when + 0.0), order(std::uint64_t{static_cast<std::uint8_t>(what)} << 32 | static_cast<std::uint32_t>(message)) {}

  EventKind kind() const { return static_cast<EventKind>(order >> 32); }
  std::int32_t message() const { return static_cast<std::int32_t>(order & 0xffffffffu); }
  /// Doubles that are not negative compare as their bits do.
  UnsignedWide key() const { return UnsignedWide{std::bit_cast<std::uint64_t>(time)} << 64 | order; }
  bool operator<(const Event& other) const { return key() < other.key(); }
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& top() const { return heap_.front(); }

  void push(Event event) {
    heap_.push_back(event);
    rise(heap_.size() - 1, event);
  }

  void pop() {
    const Event event = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    // What was last belongs near the bottom: the hole goes all the way down, and comes up again where that is too low.
    const std::size_t size = heap_.size();
    std::size_t hole = 0, child = 1;
    for (; child + 4 <= size; child = 4 * hole + 1) {
      const std::size_t left = child + (heap_[child + 1] < heap_[child]);
      const std::size_t right = child + 2 + (heap_[child + 3] < heap_[child + 2]);
      const std::size_t least = heap_[right] < heap_[left] ? right : left;
      heap_[hole] = heap_[least];
      hole = least;
    }
    if (child < size) {
      std::size_t least = child;
      for (std::size_t other = child + 1; other < size; ++other)
        if (heap_[other] < heap_[least]) least = other;
      heap_[hole] = heap_[least];
      hole = least;
    }
    rise(hole, event);
  }

 private:
  /// Puts an event into the hole, or above it.
  void rise(std::size_t hole, Event event) {
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / 4;
      if (!(event < heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  std::vector<Event> heap_;
};

}  // namespace coppice
