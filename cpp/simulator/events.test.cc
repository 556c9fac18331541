#include "simulator/events.h"

#include <algorithm>
#include <random>

#include "testing/testing.h"

using namespace coppice;

TEST(events_come_by_time_then_kind_then_message) {
  EventQueue queue;
  for (Event event : {Event(2, EventKind::kArrived, 0), Event(1, EventKind::kHead, 3), Event(1, EventKind::kArrived, 7),
                      Event(1, EventKind::kArrived, 5), Event(1, EventKind::kFree, 0)})
    queue.push(event);
  std::vector<std::int32_t> messages;
  for (; !queue.empty(); queue.pop()) messages.push_back(queue.top().message());
  CHECK((messages == std::vector<std::int32_t>{5, 7, 3, 0, 0}));
}

TEST(events_keep_their_kind_and_message) {
  Event event(0.5, EventKind::kDue, 2147483647);
  CHECK(event.kind() == EventKind::kDue);
  CHECK_EQ(event.message(), 2147483647);
}

TEST(events_of_any_number_come_sorted) {
  std::mt19937 random(3);
  for (int size : {0, 1, 2, 5, 64, 1000}) {
    EventQueue queue;
    std::vector<double> times;
    for (int i = 0; i < size; ++i) {
      times.push_back(random() % 50);
      queue.push(Event(times.back(), EventKind::kHead, i));
      if (random() % 3 == 0) {
        times.erase(std::min_element(times.begin(), times.end()));
        queue.pop();
      }
    }
    std::sort(times.begin(), times.end());
    for (double time : times) {
      CHECK_EQ(queue.top().time, time);
      queue.pop();
    }
    CHECK(queue.empty());
  }
}
