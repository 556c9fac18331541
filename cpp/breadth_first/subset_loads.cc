#include "breadth_first/subset_loads.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace coppice {

// Whether so many sources over links of that capacity are a larger load.
static bool exceeds(Amount sources, Amount capacity, const Load& load) {
  return is_less(load.numerator, load.denominator, sources, capacity);
}

SubsetLoads::SubsetLoads(const Digraph& graph, const StopFlag& stop)
    : graph_(graph), words_((static_cast<std::size_t>(graph.num_vertices()) + kBits - 1) / kBits) {
  const std::size_t n = graph.num_vertices(), all = n * words_;
  std::vector<Word> seen(all, 0);
  for (std::size_t v = 0; v < n; ++v) seen[v * words_ + v / kBits] |= Word{1} << (v % kBits);
  layers_.push_back(seen);
  for (std::size_t left = n * (n - 1); left > 0;) {
    poll(stop);
    if ((layers_.size() + 1) * all > kMostWords) break;
    const std::vector<Word>& last = layers_.back();
    std::vector<Word> next(all, 0);
    std::size_t found = 0;
    for (std::size_t v = 0; v < n; ++v) {
      Word* next_layer = next.data() + v * words_;
      for (Arc e : graph.in(static_cast<Vertex>(v))) {
        const Word* before = last.data() + graph.tail(e) * words_;
        for (std::size_t i = 0; i < words_; ++i) next_layer[i] |= before[i];
      }
      for (std::size_t i = 0; i < words_; ++i) {
        next_layer[i] &= ~seen[v * words_ + i];
        seen[v * words_ + i] |= next_layer[i];
        found += std::popcount(next_layer[i]);
      }
    }
    if (!found) break;
    left -= found;
    is_complete_ = left == 0;
    layers_.push_back(std::move(next));
  }
}

bool SubsetLoads::raise(Vertex target, std::span<const Amount> capacity, std::vector<Load>& worst) {
  const auto links = graph_.in(target);
  if (!is_complete_ || links.size() > kMostLinks) return false;
  set_capacity_.assign(std::size_t{1} << links.size(), 0);
  for (std::size_t set = 1; set < set_capacity_.size(); ++set) {
    const int last = std::countr_zero(set);
    set_capacity_[set] = set_capacity_[set & (set - 1)] + capacity[links[last]];
  }
  for (std::size_t step = 1; step < layers_.size(); ++step) {
    const Word* arriving = layers_[step].data() + target * words_;
    if (std::all_of(arriving, arriving + words_, [](Word word) { return word == 0; })) break;
    if (worst.size() < step) worst.emplace_back(0, 1);
    received_.clear();
    for (Arc e : links) received_.push_back(layers_[step - 1].data() + graph_.tail(e) * words_);
    if (each_link_could_take_all(arriving, worst[step - 1])) continue;
    count_confined(arriving);
    for (std::size_t set = 1; set < set_capacity_.size(); ++set)
      if (exceeds(confined_[set], set_capacity_[set], worst[step - 1]))
        worst[step - 1] = Load(confined_[set], set_capacity_[set]);
  }
  return true;
}

/// Whether each link could take all the sources that it is eligible for.
bool SubsetLoads::each_link_could_take_all(const Word* arriving, const Load& load) const {
  for (std::size_t link = 0; link < received_.size(); ++link) {
    Amount brought = 0;
    for (std::size_t i = 0; i < words_; ++i) brought += std::popcount(arriving[i] & received_[link][i]);
    if (exceeds(brought, set_capacity_[std::size_t{1} << link], load)) return false;
  }
  return true;
}

/// Sets confined_[W] to the number of sources that have no way but the links W.
void SubsetLoads::count_confined(const Word* arriving) {
  confined_.assign(set_capacity_.size(), 0);
  for (std::size_t i = 0; i < words_; ++i)
    for (Word left = arriving[i]; left; left &= left - 1) {
      const int bit = std::countr_zero(left);
      std::size_t set = 0;
      for (std::size_t link = 0; link < received_.size(); ++link) set |= (received_[link][i] >> bit & 1) << link;
      ++confined_[set];
    }
  for (std::size_t link = 0; link < received_.size(); ++link)
    for (std::size_t set = 0; set < confined_.size(); ++set)
      if (set >> link & 1) confined_[set] += confined_[set ^ std::size_t{1} << link];
}

}  // namespace coppice
