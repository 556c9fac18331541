#include "symmetry/translations.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/traversal.h"
#include "symmetry/mapping.h"
#include "symmetry/refinement.h"

namespace coppice {

namespace {

struct Strategy {
  bool constant_displacement;
  Chains chains;
};

// Plain shifts first; involutions where these do not lead far; then without the assumption on displacements.
constexpr Strategy kStrategies[] = {{true, Chains::kInCliques}, {true, Chains::kLong},  {true, Chains::kShort},
                                    {false, Chains::kLong},     {false, Chains::kShort}};

// Work limits in units of `effort`, about what one successful search takes.
constexpr std::int64_t kSteps = 4'000'000, kEfforts = 2;  // of the first strategy; the others get a quarter
constexpr int kMostLeads = 64;
constexpr std::int64_t kStepsPerImage = 200'000, kEffortsPerImage = 3;  // of one search
constexpr std::int64_t kLargeDegree = 64;  // the effort grows with the square of the degree up to here

Vertex rarest_compute_vertex(const ColouredGraph& graph) {
  std::vector<std::int32_t> size(graph.graph.num_vertices(), 0);
  for (std::int32_t colour : graph.colour) ++size[colour];
  Vertex best = -1;
  for (Vertex v = 0; v < graph.graph.num_vertices(); ++v)
    if (graph.compute[v] && (best < 0 || size[graph.colour[v]] < size[graph.colour[best]])) best = v;
  return best;
}

std::int64_t effort_of(const ColouredGraph& graph) {
  std::int64_t effort = 0;
  for (Vertex v = 0; v < graph.graph.num_vertices(); ++v) {
    auto degree = static_cast<std::int64_t>(graph.graph.out(v).size() + graph.graph.in(v).size());
    effort += 1 + degree * std::min(degree, kLargeDegree);
  }
  return effort;
}

/// Grows groups by one strategy, within one work limit.
class Growth {
 public:
  Growth(const ColouredGraph& graph, std::int64_t bound, Strategy strategy, std::int64_t steps, const StopFlag& stop)
      : graph_(graph),
        bound_(bound),
        strategy_(strategy),
        effort_(effort_of(graph)),
        budget_(steps, stop),
        group_(graph.compute),
        search_(graph),
        start_(rarest_compute_vertex(graph)),
        near_first_(breadth_first_order(graph.graph, start_)),
        ascending_(graph.graph.num_vertices()) {
    std::iota(ascending_.begin(), ascending_.end(), 0);
    group_changed();
  }

  /// The largest group over several images of the start that the first generator makes, near ones first.
  /// Args: impossible: per vertex, set where no automorphism at all sends the start there.
  FreeAbelianGroup run(std::vector<std::uint8_t>& impossible) {
    FreeAbelianGroup best(graph_.compute);
    int leads = 0;
    for (Vertex lead : near_first_) {
      if (best.order() == bound_ || leads == kMostLeads || budget_.exhausted()) break;
      if (lead == start_ || graph_.colour[lead] != graph_.colour[start_] || impossible[lead]) continue;
      if (group_.order() > 1) {
        group_ = FreeAbelianGroup(graph_.compute);
        group_changed();
      }
      Outcome outcome = extend_by(lead);
      impossible[lead] = outcome == Outcome::kImpossible;
      if (outcome != Outcome::kExtended) continue;
      ++leads;
      extend_by_all(impossible);
      if (group_.order() > best.order()) best = group_;
    }
    return best;
  }

 private:
  enum class Outcome {
    kExtended,
    kNotFound,
    kImpossible,  // refinement proves that there is no such automorphism
  };

  void group_changed() {
    symmetries_ = group_.generators();
    orbit_.resize(graph_.graph.num_vertices());
    for (Vertex v = 0; v < graph_.graph.num_vertices(); ++v) orbit_[v] = group_.orbit(v);
    pair_.emplace(graph_, symmetries_, 2);
  }

  void extend_by_all(std::vector<std::uint8_t> hopeless) {
    for (Vertex image : near_first_) {
      if (group_.order() == bound_ || budget_.exhausted()) return;
      if (graph_.colour[image] != graph_.colour[start_] || orbit_[image] == orbit_[start_] || hopeless[image]) continue;
      if (extend_by(image) == Outcome::kExtended) continue;
      for (Vertex v : near_first_) hopeless[v] |= orbit_[v] == orbit_[image];
    }
  }

  /// Looks for a generator that sends the start to `image` and adds it.
  Outcome extend_by(Vertex image) {
    pair_->start(graph_.colour, true);
    Vertex items[] = {start_, image + graph_.graph.num_vertices()};
    pair_->individualise(items);
    budget_.spend(graph_.graph.num_vertices());
    if (!pair_->refine(budget_)) return Outcome::kImpossible;
    std::vector<std::int32_t> source_colour = pair_->cells(0), target_colour = pair_->cells(1);
    MappingSearch::Rules rules;
    rules.source_colour = source_colour;
    rules.target_colour = target_colour;
    rules.sources = near_first_;
    rules.targets = ascending_;
    rules.symmetries = symmetries_;
    rules.orbit = orbit_;
    rules.constant_displacement = strategy_.constant_displacement;
    rules.chains = strategy_.chains;
    rules.steps = kStepsPerImage + kEffortsPerImage * effort_;
    bool extended = search_.run(rules, {start_, image}, budget_, [&](const VertexMap& map) {
      budget_.spend(graph_.graph.num_vertices());
      return group_.extend(map);
    });
    if (!extended) return Outcome::kNotFound;
    group_changed();
    return Outcome::kExtended;
  }

  const ColouredGraph& graph_;
  std::int64_t bound_;
  Strategy strategy_;
  std::int64_t effort_;
  Budget budget_;
  FreeAbelianGroup group_;
  MappingSearch search_;
  Vertex start_;
  std::vector<Vertex> near_first_;
  std::vector<Vertex> ascending_;
  std::vector<VertexMap> symmetries_;  // of the group
  std::vector<std::int32_t> orbit_;    // of the group
  std::optional<Refinement> pair_;     // of two copies of the graph, with the symmetries as arcs
};

}  // namespace

FreeAbelianGroup find_translations(const ColouredGraph& graph, std::int64_t bound, const StopFlag& stop) {
  FreeAbelianGroup best(graph.compute);
  std::vector<std::uint8_t> impossible(graph.graph.num_vertices(), 0);
  std::int64_t first_steps = kSteps + kEfforts * effort_of(graph);
  std::int64_t steps = first_steps;
  for (Strategy strategy : kStrategies) {
    if (best.order() == bound) break;
    FreeAbelianGroup group = Growth(graph, bound, strategy, steps, stop).run(impossible);
    if (group.order() > best.order()) best = std::move(group);
    steps = first_steps / 4;
  }
  return best;
}

}  // namespace coppice
