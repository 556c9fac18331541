#include "breadth_first/breadth_first.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

#include "breadth_first/arrivals.h"
#include "breadth_first/assignment.h"
#include "breadth_first/subset_loads.h"
#include "core/wide.h"

namespace coppice {

namespace {

void check(const Digraph& graph, std::span<const Amount> capacity) {
  if (capacity.size() != static_cast<std::size_t>(graph.num_arcs()))
    throw std::invalid_argument("capacity must have one entry for each arc");
  Wide sum = 0;
  for (Amount c : capacity) {
    if (c <= 0) throw std::invalid_argument("capacities must be positive, found " + std::to_string(c));
    sum += c;
  }
  require_below_limit(sum * graph.num_vertices(), "vertices times the sum of the capacities must stay below 2^62");
}

/// Whether the groups of a step get by with load `ratio`; where not, the assignment says what they need at least.
bool attains(const Arrivals& arrivals, Assignment& assignment, std::size_t step, const Load& ratio,
             std::vector<Amount>& room) {
  room.clear();
  for (Amount c : arrivals.link_capacity) room.push_back(ratio.numerator * c);
  return assignment.route(arrivals.steps[step], ratio.denominator, room);
}

}  // namespace

StepLoads balanced_loads(const Digraph& graph, std::span<const Amount> capacity, std::span<const Vertex> targets,
                         const StopFlag& stop) {
  check(graph, capacity);
  Distances distances(graph);
  Arrivals arrivals(graph, capacity, distances);
  Assignment assignment(arrivals);
  std::vector<Load> worst;
  std::vector<Amount> room;
  std::optional<SubsetLoads> subsets;  // pays where many vertices are targets
  if (4 * targets.size() > static_cast<std::size_t>(graph.num_vertices())) subsets.emplace(graph, stop);
  for (Vertex target : targets) {
    poll(stop);
    if (subsets && target >= 0 && target < graph.num_vertices() && subsets->raise(target, capacity, worst)) continue;
    arrivals.look_at(target);
    const Amount all = std::reduce(arrivals.link_capacity.begin(), arrivals.link_capacity.end(), Amount{0});
    for (std::size_t step = 0; step < arrivals.steps.size(); ++step) {
      const auto& groups = arrivals.steps[step];
      Amount sources = 0;
      for (const auto& group : groups) sources += group.size();
      const Load even(sources, all);
      if (worst.size() == step) worst.push_back(even);
      else if (worst[step] < even) worst[step] = even;
      while (!attains(arrivals, assignment, step, worst[step], room))
        worst[step] = Load(assignment.wanting, assignment.capacity);
    }
  }
  StepLoads loads;
  for (const Load& ratio : worst) {
    loads.numerator.push_back(ratio.numerator);
    loads.denominator.push_back(ratio.denominator);
  }
  return loads;
}

Deliveries balanced_deliveries(const Digraph& graph, std::span<const Amount> capacity, std::span<const Vertex> targets,
                               const StepLoads& loads, Amount pieces, const StopFlag& stop) {
  check(graph, capacity);
  if (pieces < 1 || pieces > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("pieces must be 1 .. 2^31 - 1, found " + std::to_string(pieces));
  const Amount largest = capacity.empty() ? 1 : *std::ranges::max_element(capacity);
  for (Amount q : loads.denominator)
    if (q < 1) throw std::invalid_argument("loads must have positive denominators, found " + std::to_string(q));
  for (Amount p : loads.numerator)
    require_below_limit(Wide{p} * pieces * largest, "loads times pieces must stay below 2^62");
  Distances distances(graph);
  Arrivals arrivals(graph, capacity, distances);
  Assignment assignment(arrivals);
  Deliveries found;
  std::vector<Amount> room;
  for (Vertex target : targets) {
    poll(stop);
    arrivals.look_at(target);
    if (arrivals.steps.size() > loads.numerator.size() || loads.numerator.size() != loads.denominator.size())
      throw std::invalid_argument("loads must name every step");
    for (std::size_t step = 0; step < arrivals.steps.size(); ++step) {
      const auto& groups = arrivals.steps[step];
      const Amount q = loads.denominator[step];
      room.clear();
      for (Amount c : arrivals.link_capacity) room.push_back((loads.numerator[step] * c * pieces + q - 1) / q);
      if (!assignment.route(groups, pieces, room)) throw std::invalid_argument("loads must be attainable");
      for (std::size_t g = 0; g < groups.size(); ++g) {
        std::size_t place = groups[g].first;
        Amount begun = 0;  // pieces of the source at `place` that have a link
        for (std::size_t link = 0; link < arrivals.links.size(); ++link)
          for (Amount amount = assignment.flow(g, link); amount > 0;) {
            Amount run = std::min(amount, pieces - begun);
            found.step.push_back(static_cast<std::int32_t>(step + 1));
            found.source.push_back(arrivals.sources[place]);
            found.arc.push_back(arrivals.links[link]);
            found.first.push_back(static_cast<std::int32_t>(begun));
            found.count.push_back(static_cast<std::int32_t>(run));
            amount -= run;
            begun += run;
            if (begun == pieces) ++place, begun = 0;
          }
      }
    }
  }
  return found;
}

}  // namespace coppice
