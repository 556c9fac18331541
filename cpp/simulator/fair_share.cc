#include "simulator/fair_share.h"

#include <algorithm>
#include <functional>

namespace coppice {

FairShare::FairShare(std::span<const double> capacity)
    : capacity_(capacity), left_(capacity.size()), growing_(capacity.size()), users_(capacity.size()) {}

void FairShare::solve(std::span<const std::span<const std::int32_t>> flows) {
  rate_.assign(flows.size(), 0);
  limit_.assign(flows.size(), -1);
  touched_.clear();
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    for (std::int32_t link : flows[flow]) {
      if (growing_[link]++ == 0) {
        touched_.push_back(link);
        left_[link] = capacity_[link];
        users_[link].clear();
      }
      users_[link].push_back(static_cast<std::int32_t>(flow));
    }
  }
  heap_.clear();
  for (std::int32_t link : touched_) heap_.emplace_back(left_[link] / growing_[link], link);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  double level = 0;
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    auto [share, link] = heap_.back();
    heap_.pop_back();
    if (growing_[link] == 0) continue;
    const double now = left_[link] / growing_[link];
    if (now > share) {
      heap_.emplace_back(now, link);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    level = std::max(level, now);  // rounding must not let it fall, least of all to 0
    for (std::int32_t flow : users_[link]) {
      if (limit_[flow] >= 0) continue;
      rate_[flow] = level;
      limit_[flow] = link;
      for (std::int32_t other : flows[flow]) {
        left_[other] -= level;
        --growing_[other];
      }
    }
  }
}

}  // namespace coppice
