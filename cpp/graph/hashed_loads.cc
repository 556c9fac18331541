#include "graph/hashed_loads.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include "core/hash.h"

namespace coppice {

namespace {

/// The ways on towards one destination that keep one width, for all vertices that routes may reach.
class Ways {
 public:
  Ways(const Routing& routing, const HashedFlows& flows, const StopFlag& stop) : routing_(routing) {
    const std::size_t count = flows.src.size();
    if (flows.dst.size() != count || flows.channel.size() != count || flows.units.size() != count)
      throw std::invalid_argument("columns of flows must have one length");
    if (flows.parts < 1) throw std::invalid_argument("flows must have one part or more");
    const Vertex vertices = routing.graph.num_vertices();
    std::int64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (flows.src[i] < 0 || flows.src[i] >= vertices || flows.dst[i] < 0 || flows.dst[i] >= vertices || flows.units[i] < 0)
        throw std::invalid_argument("flow " + std::to_string(i) + " must join vertices, and send 0 or more");
      if (__builtin_add_overflow(total, flows.units[i], &total) || total >= (std::int64_t{1} << 53))
        throw std::overflow_error("flows must send less than 2^53 units together");
    }
    for (std::size_t i = 0; i < count; ++i) {
      poll(stop);
      direct_.lead_to(routing, flows.dst[i], false);
      Towards* towards = &direct_;
      if (direct_.hops[flows.src[i]] < 0 && routing.relays) {
        relayed_.lead_to(routing, flows.dst[i], true);
        towards = &relayed_;
      }
      if (towards->hops[flows.src[i]] < 0) throw std::invalid_argument("flow " + std::to_string(i) + " has no route");
      first.push_back(place(flows.src[i], *towards));
    }
  }

  struct Way {
    Arc link;
    std::int32_t next;  // place that it leads to, -1 for the destination
  };
  std::vector<std::int32_t> start{0};  // ways of place p are ways[start[p] .. start[p + 1])
  std::vector<Way> ways;               // in the order of the vertices that they lead to
  std::vector<std::int32_t> first;     // place in which each flow starts, -1 where it is there already

 private:
  /// Hops and width of every vertex towards one destination, as graph/routing.h has them.
  struct Towards {
    Vertex dst = -1;
    bool through_all = false;
    std::vector<std::int32_t> hops;
    std::vector<Amount> width;
    std::map<std::pair<Vertex, Amount>, std::int32_t> known;  // place of a vertex at a width

    void lead_to(const Routing& routing, Vertex to, bool relays) {
      if (to == dst) return;
      const Vertex vertices = routing.graph.num_vertices();
      dst = to;
      through_all = relays;
      known.clear();
      hops.assign(vertices, -1);
      width.assign(vertices, 0);
      hops[dst] = 0;
      width[dst] = std::numeric_limits<Amount>::max();
      std::vector<Vertex> level{dst}, following;
      for (; !level.empty(); level.swap(following), following.clear())
        for (Vertex v : level) {
          if (v != dst && !through_all && !routing.forwards[v]) continue;
          for (Arc e : routing.graph.in(v)) {
            const Vertex u = routing.graph.tail(e);
            if (hops[u] < 0) hops[u] = hops[v] + 1, following.push_back(u);
            if (hops[u] == hops[v] + 1) width[u] = std::max(width[u], std::min(routing.capacity[e], width[v]));
          }
        }
    }
  };

  /// Lists the ways on from a vertex, and all that they lead to.
  std::int32_t place(Vertex from, Towards& towards) {
    const Amount wanted = towards.width[from];
    std::vector<Vertex> waiting;
    auto number = [&](Vertex v) {
      if (v == towards.dst) return std::int32_t{-1};
      auto [at, is_new] = towards.known.try_emplace({v, wanted}, next_);
      if (is_new) ++next_, waiting.push_back(v);
      return at->second;
    };
    const std::int32_t found = number(from);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const Vertex here = waiting[i];
      std::vector<std::pair<Vertex, Arc>> onwards;
      for (Arc e : routing_.graph.out(here)) {
        const Vertex v = routing_.graph.head(e);
        if (towards.hops[v] == towards.hops[here] - 1 &&
            (v == towards.dst || towards.through_all || routing_.forwards[v]) &&
            std::min(routing_.capacity[e], towards.width[v]) >= wanted)
          onwards.emplace_back(v, e);
      }
      std::ranges::sort(onwards);
      for (auto [v, e] : onwards) ways.push_back({e, number(v)});
      start.push_back(static_cast<std::int32_t>(ways.size()));
    }
    return found;
  }

  const Routing& routing_;
  Towards direct_, relayed_;
  std::int32_t next_ = 0;
};

/// Where a flow has its first choice, and at which position of its route.
struct Start {
  std::int32_t place;
  std::uint64_t position;
};

}  // namespace

std::uint64_t seed_state(std::uint64_t seed) { return seed == 0 ? 0 : mixed(0, seed); }

HashedLoads hashed_loads(const Routing& routing, const HashedFlows& flows, std::uint64_t first_seed, std::int64_t draws,
                         const StopFlag& stop) {
  const Ways ways(routing, flows, stop);
  const std::size_t count = flows.src.size(), links = routing.capacity.size();
  const auto parts = static_cast<std::uint64_t>(flows.parts);
  std::vector<double> fixed(links, 0.0), share(links);
  for (std::size_t e = 0; e < links; ++e) share[e] = 1.0 / static_cast<double>(routing.capacity[e]);
  std::vector<Start> starts(count);
  std::vector<std::vector<Arc>> before(count);  // links that a flow crosses in every draw, before its first choice
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t at = ways.first[i];
    std::uint64_t position = 1;
    for (; at >= 0 && ways.start[at + 1] - ways.start[at] == 1; ++position) {
      const auto& way = ways.ways[ways.start[at]];
      fixed[way.link] += static_cast<double>(flows.units[i]);
      before[i].push_back(way.link);
      at = way.next;
    }
    starts[i] = {at, position};
  }
  std::vector<std::uint8_t> chosen(links, 0);
  for (std::size_t p = 0; p + 1 < ways.start.size(); ++p)
    if (ways.start[p + 1] - ways.start[p] > 1)
      for (std::int32_t w = ways.start[p]; w < ways.start[p + 1]; ++w) chosen[ways.ways[w].link] = 1;

  HashedLoads found;
  found.hits.assign(count, 0);
  std::vector<double> load(links);
  std::vector<Arc> crossed;             // of all flows that have a choice, one after the other
  std::vector<std::size_t> end(count);  // where those of a flow end
  for (std::int64_t draw = 0; draw < draws; ++draw) {
    if (draw % 64 == 0) poll(stop);
    const std::uint64_t state = seed_state(first_seed + static_cast<std::uint64_t>(draw));
    load = fixed;
    crossed.clear();
    for (std::size_t i = 0; i < count; ++i) {
      if (starts[i].place >= 0) {
        const double units = static_cast<double>(flows.units[i]) / static_cast<double>(parts);
        const std::uint64_t ends = mixed(mixed(state, static_cast<std::uint64_t>(flows.src[i])),
                                         static_cast<std::uint64_t>(flows.dst[i]));
        for (std::uint64_t part = 0; part < parts; ++part) {
          const std::uint64_t flow = static_cast<std::uint64_t>(flows.channel[i]);
          const std::uint64_t hash = mixed(ends, flows.dealt || parts == 1 ? flow : flow * parts + part);
          bool is_first = true;
          std::uint64_t position = starts[i].position;
          for (std::int32_t at = starts[i].place; at >= 0; ++position) {
            const std::int32_t from = ways.start[at];
            const auto choices = static_cast<std::uint64_t>(ways.start[at + 1] - from);
            std::uint64_t pick = choices == 1 ? 0 : mixed(hash, position) % choices;
            if (is_first && flows.dealt) pick = (pick + part) % choices;
            is_first = false;
            const auto& way = ways.ways[from + static_cast<std::int32_t>(pick)];
            load[way.link] += units;
            crossed.push_back(way.link);
            at = way.next;
          }
        }
      }
      end[i] = crossed.size();
    }
    double busiest = 0.0, among = 0.0;
    std::size_t worst = links;
    for (std::size_t e = 0; e < links; ++e) {
      const double busy = load[e] * share[e];
      if (busy > busiest) busiest = busy, worst = e;
      if (chosen[e]) among = std::max(among, busy);
    }
    found.busiest.push_back(busiest);
    found.busiest_chosen.push_back(among);
    for (std::size_t i = 0, at = 0; i < count && worst < links; ++i) {
      bool hit = std::ranges::find(before[i], static_cast<Arc>(worst)) != before[i].end();
      for (; at < end[i]; ++at) hit |= crossed[at] == static_cast<Arc>(worst);
      found.hits[i] += hit;
    }
  }
  return found;
}

std::vector<double> expected_loads(const Routing& routing, const HashedFlows& flows, const StopFlag& stop) {
  const Ways ways(routing, flows, stop);
  std::vector<double> load(routing.capacity.size(), 0.0), weight(ways.start.size() - 1, 0.0);
  // Places are numbered breadth first from every start: what leads to one comes before it within a flow's own ways, but
  // another flow may have listed them first. So each flow is followed level by level.
  std::vector<std::int32_t> level, following;
  for (std::size_t i = 0; i < flows.src.size(); ++i) {
    if (ways.first[i] < 0) continue;
    level.assign(1, ways.first[i]);
    weight[ways.first[i]] = static_cast<double>(flows.units[i]);
    for (; !level.empty(); level.swap(following), following.clear())
      for (std::int32_t at : level) {
        const double each = weight[at] / (ways.start[at + 1] - ways.start[at]);
        weight[at] = 0.0;
        for (std::int32_t w = ways.start[at]; w < ways.start[at + 1]; ++w) {
          const auto& way = ways.ways[w];
          load[way.link] += each;
          if (way.next < 0) continue;
          if (weight[way.next] == 0.0) following.push_back(way.next);
          weight[way.next] += each;
        }
      }
  }
  return load;
}

}  // namespace coppice
