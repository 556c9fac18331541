// Starts::dispatch, a template: it is on the hot path of each way to share links.
#pragma once

#include <algorithm>
#include <functional>

#include "simulator_starts.h"

namespace coppice {

template <class Begin, class Postpone>
void Starts::dispatch(double now, Begin&& begin, Postpone&& postpone) {
  candidates_.clear();
  for (Message m : ready_) {
    if (!traffic_.due.empty() && traffic_.due[m] > now)
      postpone(m, traffic_.due[m]);
    else
      candidates_.push_back({m, -1});
  }
  ready_.clear();
  std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  for (std::int32_t engine : freed_) {
    is_freed_[engine] = 0;
    offer(engine);
  }
  freed_.clear();
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    auto [m, engine] = candidates_.back();
    candidates_.pop_back();
    if (engine >= 0) {
      if (free_[engine] == 0) continue;
      unwatch(engine);
    }
    if (std::int32_t missing = lacking(m); missing >= 0) {
      watch(missing, m);
    } else {
      if (std::int32_t e = send_engine(m); e >= 0) --free_[e];
      if (std::int32_t e = receive_engine(m); e >= 0) --free_[e];
      if (engine >= 0) {
        out_.cause[m] = freed_by_[engine];
        out_.reason[m] = static_cast<std::int8_t>(Cause::kEngine);
      }
      out_.start[m] = now;
      begin(m);
    }
    if (engine >= 0) offer(engine);
  }
}

}  // namespace coppice
