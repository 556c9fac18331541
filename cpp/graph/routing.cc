#include "graph/routing.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/hash.h"

namespace coppice {

namespace {

constexpr std::size_t kRequestsPerPoll = 1024;

/// All shortest ways to one destination at a time.
class Search {
 public:
  Search(const Routing& routing, bool through_all)
      : routing_(routing), through_all_(through_all), hops_(routing.graph.num_vertices()),
        width_(routing.graph.num_vertices()), num_choices_(routing.graph.num_vertices()),
        first_choice_(routing.graph.num_vertices()), choices_(routing.graph.num_arcs()) {
    Arc arcs = 0;
    for (Vertex v = 0; v < routing.graph.num_vertices(); ++v) {
      first_choice_[v] = arcs;
      arcs += static_cast<Arc>(routing.graph.out(v).size());
    }
  }

  void lead_to(Vertex dst) {
    if (dst == dst_) return;
    dst_ = dst;
    std::ranges::fill(hops_, -1);
    std::ranges::fill(width_, 0);
    std::ranges::fill(num_choices_, 0);
    hops_[dst] = 0;
    width_[dst] = std::numeric_limits<Amount>::max();
    level_.assign(1, dst);
    while (!level_.empty()) {
      following_.clear();
      for (Vertex v : level_)
        if (v == dst || through_all_ || routing_.forwards[v]) reach_from(v);
      std::ranges::sort(following_);  // so that choices come in id order
      level_.swap(following_);
    }
  }

  bool reaches(Vertex src) const { return hops_[src] >= 0; }

  /// Appends the route from `src`, which is reached.
  void append_route(Vertex src, std::uint64_t hash, std::vector<Vertex>& nodes) const {
    nodes.push_back(src);
    Vertex here = src;
    for (std::uint64_t position = 1; here != dst_; ++position) {
      here = chosen(here, width_[src], mixed(hash, position));
      nodes.push_back(here);
    }
  }

 private:
  struct Choice {
    Vertex next;
    Amount bottleneck;  // of the arc to `next` and the widest way from there
  };

  void reach_from(Vertex v) {
    for (Arc e : routing_.graph.in(v)) {
      Vertex u = routing_.graph.tail(e);
      if (hops_[u] < 0) {
        hops_[u] = hops_[v] + 1;
        following_.push_back(u);
      }
      if (hops_[u] != hops_[v] + 1) continue;
      Amount bottleneck = std::min(routing_.capacity[e], width_[v]);
      width_[u] = std::max(width_[u], bottleneck);
      choices_[first_choice_[u] + num_choices_[u]++] = {v, bottleneck};
    }
  }

  Vertex chosen(Vertex here, Amount wanted, std::uint64_t hash) const {
    std::span<const Choice> choices(choices_.data() + first_choice_[here], num_choices_[here]);
    if (choices.size() == 1) return choices[0].next;
    auto wide = [&](const Choice& choice) { return choice.bottleneck >= wanted; };
    std::uint64_t pick = hash % static_cast<std::uint64_t>(std::ranges::count_if(choices, wide));
    return std::ranges::find_if(choices, [&](const Choice& choice) { return wide(choice) && pick-- == 0; })->next;
  }

  const Routing& routing_;
  bool through_all_;
  Vertex dst_ = -1;
  std::vector<std::int32_t> hops_;         // hops_[v] to dst_, -1 where nothing leads there
  std::vector<Amount> width_;              // width_[v]: best bottleneck over the shortest ways from v
  std::vector<std::int32_t> num_choices_;  // the choices at v are choices_[first_choice_[v] ..], this many
  std::vector<Arc> first_choice_;
  std::vector<Choice> choices_;
  std::vector<Vertex> level_;
  std::vector<Vertex> following_;
};

}  // namespace

Routes find_routes(const Routing& routing, std::span<const Vertex> src, std::span<const Vertex> dst,
                   std::span<const std::int64_t> channel, const StopFlag& stop) {
  const Vertex num_vertices = routing.graph.num_vertices();
  Search direct(routing, false), relayed(routing, true);
  Routes routes;
  routes.start.reserve(src.size() + 1);
  routes.start.push_back(0);
  for (std::size_t i = 0; i < src.size(); ++i) {
    bool new_destination = i == 0 || dst[i] != dst[i - 1];
    if (new_destination || i % kRequestsPerPoll == 0) poll(stop);
    if (src[i] < 0 || src[i] >= num_vertices || dst[i] < 0 || dst[i] >= num_vertices)
      throw std::invalid_argument("request " + std::to_string(i) + " must join vertices 0 .. " +
                                  std::to_string(num_vertices - 1) + ", found " + std::to_string(src[i]) + " and " +
                                  std::to_string(dst[i]));
    Search* search = &direct;
    search->lead_to(dst[i]);
    if (!search->reaches(src[i]) && routing.relays) {
      search = &relayed;
      search->lead_to(dst[i]);
    }
    if (!search->reaches(src[i])) break;
    std::uint64_t hash = routing.hash;
    for (std::int64_t value : {std::int64_t{src[i]}, std::int64_t{dst[i]}, channel[i]})
      hash = mixed(hash, static_cast<std::uint64_t>(value));
    search->append_route(src[i], hash, routes.nodes);
    routes.start.push_back(static_cast<std::int64_t>(routes.nodes.size()));
  }
  return routes;
}

}  // namespace coppice
