// The event queue of the simulator: a heap of four children, ordered by time, then kind, then message.
//
// Cost: O(log events) for each one that comes or goes.
#pragma once

#include <cstdint>
#include <vector>

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
  double time;
  std::uint64_t order;  // kind, then message

  Event(double when, EventKind what, std::int32_t message)
      : time(when), order(std::uint64_t{static_cast<std::uint8_t>(what)} << 32 | static_cast<std::uint32_t>(message)) {}

  EventKind kind() const { return static_cast<EventKind>(order >> 32); }
  std::int32_t message() const { return static_cast<std::int32_t>(order & 0xffffffffu); }
  bool operator<(const Event& other) const { return time < other.time || (time == other.time && order < other.order); }
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& top() const { return heap_.front(); }

  void push(Event event) {
    std::size_t hole = heap_.size();
    heap_.push_back(event);
    while (hole > 0) {
      std::size_t parent = (hole - 1) / 4;
      if (!(event < heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  void pop() {
    Event event = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    std::size_t size = heap_.size(), hole = 0;
    for (std::size_t child = 1; child < size; child = 4 * hole + 1) {
      std::size_t last = child + 4 < size ? child + 4 : size, least = child;
      for (std::size_t other = child + 1; other < last; ++other)
        if (heap_[other] < heap_[least]) least = other;
      if (!(heap_[least] < event)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = event;
  }

 private:
  std::vector<Event> heap_;
};

}  // namespace coppice
