// Starts::dispatch, a template: it is on the hot path of each way to share links.
#pragma once

#include <algorithm>
#include <functional>

#include "simulator/starts.h"

namespace coppice {

template <class Begin, class Postpone>
void Starts::dispatch(double now, Begin&& begin, Postpone&& postpone) {
  fresh_.clear();
  for (Message m : ready_) {
    if (!traffic_.due.empty() && traffic_.due[m] > now)
      postpone(m, traffic_.due[m]);
    else
      fresh_.push_back(m);
  }
  ready_.clear();
  line_up(fresh_);
  for (std::int32_t engine : freed_) {
    is_freed_[engine] = 0;
    offer_watched(engine);
  }
  freed_.clear();
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    const Candidate next = candidates_.back();
    candidates_.pop_back();
    const Message m = next.message;
    if (next.is_watched) {
      if (free_[next.engine] == 0) continue;  // it stays watched there
      auto& watched = watched_[next.engine];
      std::pop_heap(watched.begin(), watched.end(), std::greater<>());
      watched.pop_back();
      lines_[next.line].watched_at = -1;
    }
    if (next.line < 0) {
      out_.start[m] = now;
      begin(m);
      continue;
    }
    Line& line = lines_[next.line];
    if (lacking(line) < 0) {
      std::pop_heap(line.waiting.begin(), line.waiting.end(), std::greater<>());
      line.waiting.pop_back();
      if (line.send_engine >= 0) --free_[line.send_engine];
      if (line.receive_engine >= 0) --free_[line.receive_engine];
      if (out_.reason[m] == static_cast<std::int8_t>(Cause::kEngine)) out_.cause[m] = freed_by_[next.engine];
      out_.start[m] = now;
      begin(m);
    }
    if (!line.waiting.empty()) watch_or_offer(next.line, next.engine);
    if (next.is_watched) offer_watched(next.engine);
  }
  for (Message m : fresh_)
    if (out_.start[m] < 0) out_.reason[m] = static_cast<std::int8_t>(Cause::kEngine);
}

}  // namespace coppice
