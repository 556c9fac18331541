#include "flow/circuits.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace coppice {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t place(std::int64_t index) { return static_cast<std::size_t>(index); }

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

class CircuitRouter {
 public:
  CircuitRouter(const CircuitLinks& network, double share, double fullest)
      : network_(network),
        share_(share),
        fullest_(fullest),
        load_(network.tail.size(), 0),
        per_message_(network.tail.size()),
        per_load_(network.tail.size()),
        far_(place(network.num_nodes)),
        via_(place(network.num_nodes)),
        out_start_(place(network.num_nodes) + 1, 0),
        out_(network.tail.size()),
        narrowest_(*std::min_element(network.rate.begin(), network.rate.end())) {
    for (std::int32_t tail : network.tail) ++out_start_[place(tail) + 1];
    std::partial_sum(out_start_.begin(), out_start_.end(), out_start_.begin());
    std::vector<std::size_t> next(out_start_.begin(), out_start_.end() - 1);
    for (std::size_t link = 0; link < network.tail.size(); ++link)
      out_[next[place(network.tail[link])]++] = static_cast<std::int32_t>(link);
  }

  void begin(CircuitRound round) {
    power_ = round.power;
    const double unit = round.message / narrowest_;
    for (std::size_t link = 0; link < load_.size(); ++link) {
      per_message_[link] = network_.fixed[link] * unit;
      price(link);
    }
  }

  void add(const std::vector<std::int32_t>& links, double share) {
    for (std::int32_t link : links) {
      load_[place(link)] += share;
      price(place(link));
    }
  }

  void path(std::int32_t source, std::int32_t target, std::vector<std::int32_t>& found) {
    std::fill(far_.begin(), far_.end(), kNever);
    far_[place(source)] = 0;
    heap_.assign(1, {0, source});
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const auto [so_far, node] = heap_.back();
      heap_.pop_back();
      if (node == target) break;
      if (so_far > far_[place(node)]) continue;
      for (std::size_t i = out_start_[place(node)]; i < out_start_[place(node) + 1]; ++i) {
        const std::size_t link = place(out_[i]), head = place(network_.head[link]);
        const double cost = so_far + per_message_[link] + per_load_[link];
        if (!(cost < far_[head])) continue;
        far_[head] = cost;
        via_[head] = static_cast<std::int32_t>(link);
        heap_.emplace_back(cost, static_cast<std::int32_t>(head));
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      }
    }
    require(far_[place(target)] < kNever, "blocks need a way between all terminals");
    found.clear();
    for (std::int32_t node = target; node != source; node = network_.tail[place(found.back())])
      found.push_back(via_[place(node)]);
    std::reverse(found.begin(), found.end());
  }

  std::vector<double> loads() const {
    std::vector<double> found(load_.size());
    std::transform(load_.begin(), load_.end(), network_.rate.begin(), found.begin(), std::divides<>());
    return found;
  }

 private:
  void price(std::size_t link) {
    const double full = std::min((load_[link] + share_) / network_.rate[link], fullest_);
    per_load_[link] = std::pow(full, static_cast<double>(power_)) / network_.rate[link];
  }

  const CircuitLinks& network_;
  const double share_, fullest_;
  std::vector<double> load_, per_message_, per_load_, far_;
  std::vector<std::int32_t> via_;
  std::vector<std::size_t> out_start_;
  std::vector<std::int32_t> out_;  // links by their tails, those of a node in the order of their numbers
  std::vector<std::pair<double, std::int32_t>> heap_;
  double narrowest_;
  std::int32_t power_ = 1;
};

}  // namespace

Circuits route_circuits(const CircuitLinks& network, std::span<const std::int32_t> terminals, std::int32_t parts,
                        std::span<const CircuitRound> rounds, double fullest, double even, const StopFlag& stop) {
  const std::size_t size = network.tail.size();
  require(size > 0 && network.head.size() == size && network.rate.size() == size && network.fixed.size() == size,
          "circuits need links, and columns of one length");
  require(parts >= 1 && !rounds.empty(), "circuits need a part and a round");
  auto are_nodes = [&](std::span<const std::int32_t> column) {
    return std::all_of(column.begin(), column.end(), [&](std::int32_t v) { return 0 <= v && v < network.num_nodes; });
  };
  require(are_nodes(network.tail) && are_nodes(network.head) && are_nodes(terminals), "circuits need known nodes");
  require(std::all_of(network.rate.begin(), network.rate.end(), [](double each) { return each > 0; }) &&
              std::all_of(network.fixed.begin(), network.fixed.end(), [](double each) { return each >= 0; }),
          "circuits need rates above 0 and costs of 0 or more");
  const std::size_t ranks = terminals.size();
  const double share = 1.0 / parts;
  CircuitRouter router(network, share, fullest);
  // By sender, receiver and part; that of a rank to itself stays empty.
  std::vector<std::vector<std::int32_t>> chosen(ranks * ranks * place(parts)), best;
  Circuits found{.load = kNever, .loads = {}, .start = {0}, .links = {}};
  for (const CircuitRound& round : rounds) {
    router.begin(round);
    for (std::size_t sender = 0; sender < ranks; ++sender) {
      poll(stop);
      for (std::size_t part = 0; part < place(parts); ++part)
        for (std::size_t away = 1; away < ranks; ++away) {
          const std::size_t receiver = (sender + away) % ranks;
          auto& links = chosen[(sender * ranks + receiver) * place(parts) + part];
          router.add(links, -share);
          router.path(terminals[sender], terminals[receiver], links);
          router.add(links, share);
        }
    }
    found.loads = router.loads();
    const double full = *std::max_element(found.loads.begin(), found.loads.end());
    if (full < found.load - even + 1) found.load = full, best = chosen;
    if (full <= even) break;
  }
  for (std::size_t pair = 0; pair < ranks * ranks; ++pair) {
    if (pair / ranks == pair % ranks) continue;
    for (std::size_t part = 0; part < place(parts); ++part) {
      const auto& links = best[pair * place(parts) + part];
      found.links.insert(found.links.end(), links.begin(), links.end());
      found.start.push_back(static_cast<std::int64_t>(found.links.size()));
    }
  }
  return found;
}

}  // namespace coppice
