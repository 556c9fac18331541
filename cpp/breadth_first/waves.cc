#include "breadth_first/waves.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace coppice {

Waves::Waves(const Digraph& graph, const StopFlag& stop)
    : graph_(graph), words_((static_cast<std::size_t>(graph.num_vertices()) + kBits - 1) / kBits) {
  const std::size_t n = graph.num_vertices(), all = n * words_;
  std::vector<Word> seen(all, 0);
  for (std::size_t v = 0; v < n; ++v) seen[v * words_ + v / kBits] |= Word{1} << (v % kBits);
  waves_.push_back(seen);
  for (std::size_t left = n * (n - 1); left > 0;) {
    if (stop && stop()) throw Cancelled{};
    if ((waves_.size() + 1) * all > kMostWords) break;
    const std::vector<Word>& last = waves_.back();
    std::vector<Word> next(all, 0);
    std::size_t found = 0;
    for (std::size_t v = 0; v < n; ++v) {
      Word* here = next.data() + v * words_;
      for (Arc e : graph.in(static_cast<Vertex>(v))) {
        const Word* before = last.data() + graph.tail(e) * words_;
        for (std::size_t i = 0; i < words_; ++i) here[i] |= before[i];
      }
      for (std::size_t i = 0; i < words_; ++i) {
        here[i] &= ~seen[v * words_ + i];
        seen[v * words_ + i] |= here[i];
        found += std::popcount(here[i]);
      }
    }
    if (!found) break;
    left -= found;
    complete_ = left == 0;
    waves_.push_back(std::move(next));
  }
}

bool Waves::settle(Vertex target, std::span<const Amount> capacity, std::vector<Load>& worst) {
  const auto links = graph_.in(target);
  if (!complete_ || links.size() > kFewLinks) return false;
  limit_.assign(std::size_t{1} << links.size(), 0);
  for (std::size_t set = 1; set < limit_.size(); ++set) {
    const int last = std::countr_zero(set);
    limit_[set] = limit_[set & (set - 1)] + capacity[links[last]];
  }
  for (std::size_t step = 1; step < waves_.size(); ++step) {
    const Word* here = waves_[step].data() + target * words_;
    if (std::all_of(here, here + words_, [](Word word) { return word == 0; })) break;
    if (worst.size() < step) worst.emplace_back(0, 1);
    before_.clear();
    for (Arc e : links) before_.push_back(waves_[step - 1].data() + graph_.tail(e) * words_);
    if (harmless(here, worst[step - 1])) continue;
    count_sets(here);
    for (std::size_t set = 1; set < limit_.size(); ++set)
      if (Wide{within_[set]} * worst[step - 1].denominator > Wide{worst[step - 1].numerator} * limit_[set])
        worst[step - 1] = Load(within_[set], limit_[set]);
  }
  return true;
}

/// Whether each link could take all the sources that it is eligible for.
bool Waves::harmless(const Word* here, const Load& load) const {
  for (std::size_t link = 0; link < before_.size(); ++link) {
    Amount brought = 0;
    for (std::size_t i = 0; i < words_; ++i) brought += std::popcount(here[i] & before_[link][i]);
    if (Wide{brought} * load.denominator > Wide{load.numerator} * limit_[std::size_t{1} << link]) return false;
  }
  return true;
}

/// Sets within_[W] to the number of sources that have no way but the links W.
void Waves::count_sets(const Word* here) {
  within_.assign(limit_.size(), 0);
  for (std::size_t i = 0; i < words_; ++i)
    for (Word left = here[i]; left; left &= left - 1) {
      const int bit = std::countr_zero(left);
      std::size_t set = 0;
      for (std::size_t link = 0; link < before_.size(); ++link) set |= (before_[link][i] >> bit & 1) << link;
      ++within_[set];
    }
  for (std::size_t link = 0; link < before_.size(); ++link)
    for (std::size_t set = 0; set < within_.size(); ++set)
      if (set >> link & 1) within_[set] += within_[set ^ std::size_t{1} << link];
}

}  // namespace coppice
