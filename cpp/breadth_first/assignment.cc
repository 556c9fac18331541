#include "breadth_first/assignment.h"

#include <algorithm>

namespace coppice {

bool Assignment::route(const std::vector<Arrivals::Group>& groups, Amount unit, std::span<const Amount> room) {
  const std::size_t num_links = arrivals_.links.size();
  left_.assign(room.begin(), room.end());
  flow_.assign(groups.size() * num_links, 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Amount supply = groups[g].size() * unit;
    for (std::size_t link = 0; link < num_links && supply > 0; ++link) {
      if (!left_[link] || !arrivals_.may_use(groups[g], link)) continue;
      Amount amount = std::min(supply, left_[link]);
      flow_[g * num_links + link] += amount;
      left_[link] -= amount;
      supply -= amount;
    }
    while (supply > 0) {
      Amount moved = augment(groups, g, supply);
      if (!moved) return note_shortage(groups);
      supply -= moved;
    }
  }
  return true;
}

/// Makes room for up to `limit` of group g by moving others; 0 where no link with room can be reached.
Amount Assignment::augment(const std::vector<Arrivals::Group>& groups, std::size_t g, Amount limit) {
  const std::size_t num_links = arrivals_.links.size();
  group_of_.assign(num_links, -1);
  link_of_.assign(groups.size(), -1);
  link_of_[g] = static_cast<std::int32_t>(num_links);
  queue_.clear();
  auto offer = [&](std::size_t group) {
    for (std::size_t link = 0; link < num_links; ++link) {
      if (group_of_[link] >= 0 || !arrivals_.may_use(groups[group], link)) continue;
      group_of_[link] = static_cast<std::int32_t>(group);
      queue_.push_back(link);
    }
  };
  offer(g);
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    std::size_t link = queue_[head];
    if (left_[link] > 0) return shift(g, link, std::min(limit, left_[link]));
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (link_of_[group] >= 0 || !flow_[group * num_links + link]) continue;
      link_of_[group] = static_cast<std::int32_t>(link);
      offer(group);
    }
  }
  return 0;
}

/// Moves up to `amount` of group g to `link`, back along the way that the search found.
Amount Assignment::shift(std::size_t g, std::size_t link, Amount amount) {
  const std::size_t num_links = arrivals_.links.size();
  for (std::size_t group = group_of_[link]; group != g;) {
    std::size_t from = link_of_[group];
    amount = std::min(amount, flow_[group * num_links + from]);
    group = group_of_[from];
  }
  left_[link] -= amount;
  for (std::size_t group = group_of_[link];; group = group_of_[link]) {
    flow_[group * num_links + link] += amount;
    if (group == g) return amount;
    link = link_of_[group];
    flow_[group * num_links + link] -= amount;
  }
}

/// The links that the search reached are full, and all that fills them has no other way.
bool Assignment::note_shortage(const std::vector<Arrivals::Group>& groups) {
  wanting = capacity = 0;
  for (std::size_t link = 0; link < group_of_.size(); ++link)
    if (group_of_[link] >= 0) capacity += arrivals_.link_capacity[link];
  for (std::size_t group = 0; group < groups.size(); ++group) {
    bool confined = true;
    for (std::size_t link = 0; link < group_of_.size() && confined; ++link)
      confined = group_of_[link] >= 0 || !arrivals_.may_use(groups[group], link);
    if (confined) wanting += groups[group].size();
  }
  return false;
}

}  // namespace coppice
