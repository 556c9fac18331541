#include "tasks/operations.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace coppice {

namespace {

bool rows(std::span<const std::int64_t> start, std::size_t groups, std::size_t entries) {
  return start.size() == groups + 1 && start[0] == 0 && start[groups] == static_cast<std::int64_t>(entries) &&
         std::is_sorted(start.begin(), start.end());
}

bool filled_rows(std::span<const std::int64_t> start, std::size_t entries) {
  return !start.empty() && rows(start, start.size() - 1, entries) &&
         std::adjacent_find(start.begin(), start.end()) == start.end();
}

bool below(std::span<const std::int32_t> values, std::int64_t least, std::size_t end) {
  return std::all_of(values.begin(), values.end(),
                     [&](std::int32_t each) { return each >= least && each < static_cast<std::int64_t>(end); });
}

void check(const Operations& given, const OperationPlan& plan) {
  const std::size_t n = given.size(), decisions = plan.pieces.size(), options = given.stream.size();
  if (given.group.size() != n || given.priority.size() != n || given.ways.size() != n ||
      !rows(given.after_start, n, given.after.size()))
    throw std::invalid_argument("columns of operations differ in length");
  if (given.starting.size() != options || given.amount.size() != options || given.rate.size() != options ||
      !filled_rows(given.option_start, options) || !filled_rows(given.motif_start, given.option_start.size() - 1) ||
      !filled_rows(given.way_start, given.motif_start.size() - 1))
    throw std::invalid_argument("columns of ways differ in length");
  if (!below(given.after, 0, n)) throw std::invalid_argument("no such operation to wait for");
  if (!below(given.ways, 0, given.way_start.size() - 1)) throw std::invalid_argument("no such ways");
  if (!below(given.decision, -1, decisions)) throw std::invalid_argument("no such decision");
  if (plan.width < 0 || plan.way.size() != decisions || plan.ranked.size() != decisions || plan.rank.size() != decisions ||
      plan.options.size() != decisions * static_cast<std::size_t>(plan.width))
    throw std::invalid_argument("columns of a plan differ in length");
  for (std::int32_t each : plan.pieces)
    if (each < 1) throw std::invalid_argument("pieces out of range");
}

/// What a plan settles for an operation.
struct Settled {
  std::int64_t motif, length, pieces, first;  // its first motif and its task, how many motifs and pieces
  std::int64_t end() const { return first + pieces * length - (pieces == 1); }  // with which all of it is over
  std::int64_t end(std::int64_t piece) const { return first + (piece + 1) * length - 1; }
};

std::int64_t chosen(std::int64_t wanted, std::int64_t begin, std::int64_t end) {
  return begin + (wanted < 0 || wanted >= end - begin ? 0 : wanted);
}

}  // namespace

OperationTasks tasks_of(const Operations& given, const OperationPlan& plan) {
  check(given, plan);
  const std::size_t n = given.size();
  std::vector<Settled> settled(n);
  std::int64_t total = 0, dependencies = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t decision = given.decision[i];
    const std::int32_t set = given.ways[i];
    const std::int64_t way = chosen(decision < 0 ? 0 : plan.way[decision], given.way_start[set], given.way_start[set + 1]);
    Settled& own = settled[i];
    own.motif = given.motif_start[way];
    own.length = given.motif_start[way + 1] - own.motif;
    own.pieces = decision < 0 ? 1 : plan.pieces[decision];
    own.first = total;
    total += own.pieces * own.length + (own.pieces > 1);
    dependencies += own.pieces * (own.length + given.after_start[i + 1] - given.after_start[i]);
    if (total > std::numeric_limits<std::int32_t>::max()) throw std::invalid_argument("too many tasks");
  }
  OperationTasks out;
  const auto count = static_cast<std::size_t>(total);
  for (auto* column : {&out.operation, &out.piece, &out.option, &out.stream}) column->reserve(count);
  out.seconds.reserve(count);
  out.priority.reserve(count);
  out.after_start.reserve(count + 1);
  out.after.reserve(static_cast<std::size_t>(dependencies));
  out.after_start.push_back(0);
  const auto add = [&](std::size_t operation, std::int64_t piece, std::int64_t option, double seconds, std::int64_t priority) {
    out.operation.push_back(static_cast<std::int32_t>(operation));
    out.piece.push_back(static_cast<std::int32_t>(piece));
    out.option.push_back(static_cast<std::int32_t>(option));
    out.stream.push_back(option < 0 ? -1 : given.stream[option]);
    out.seconds.push_back(seconds);
    out.priority.push_back(priority);
    out.after_start.push_back(static_cast<std::int64_t>(out.after.size()));
  };
  for (std::size_t i = 0; i < n; ++i) {
    const Settled own = settled[i];
    const std::int32_t decision = given.decision[i];
    const std::int64_t priority = decision >= 0 && plan.ranked[decision] ? plan.rank[decision] : given.priority[i];
    for (std::int64_t piece = 0; piece < own.pieces; ++piece) {
      for (std::int64_t m = 0; m < own.length; ++m) {
        if (m > 0) out.after.push_back(static_cast<std::int32_t>(own.first + piece * own.length + m - 1));
        for (std::int64_t k = given.after_start[i]; m == 0 && k < given.after_start[i + 1]; ++k) {
          const std::int32_t other = given.after[k];
          const bool alike =
              given.group[i] >= 0 && given.group[i] == given.group[other] && own.pieces == settled[other].pieces;
          out.after.push_back(static_cast<std::int32_t>(alike ? settled[other].end(piece) : settled[other].end()));
        }
        const std::int64_t motif = own.motif + m;
        const std::int32_t wanted = decision < 0 || m >= plan.width ? 0 : plan.options[std::int64_t{decision} * plan.width + m];
        const std::int64_t option = chosen(wanted, given.option_start[motif], given.option_start[motif + 1]);
        const double size = given.amount[option] / static_cast<double>(own.pieces);
        add(i, piece, option, given.starting[option] + size / given.rate[option], priority);
      }
    }
    if (own.pieces == 1) continue;
    for (std::int64_t piece = 0; piece < own.pieces; ++piece) out.after.push_back(static_cast<std::int32_t>(own.end(piece)));
    add(i, own.pieces, -1, 0, 0);
  }
  return out;
}

}  // namespace coppice
