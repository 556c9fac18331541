// Operations of a training step that may be cut in pieces and done in several ways, and the tasks of a plan of them.
//
// An operation has ways, a way is a row of motifs, and each motif is done by one of several channels. A plan says for
// every decision in how many pieces its operations are cut, in which way they are done, on which channels, and how urgent
// they are. The motifs of a piece follow each other; where there are several pieces, a barrier follows them. Operations
// of a group that are cut alike wait piece by piece, others for the whole.
//
// Cost: O(tasks + dependencies).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

struct Operations {
  std::span<const std::int32_t> decision;     // per operation; -1: none, the plain way in one piece
  std::span<const std::int32_t> group;        // per operation; -1: none
  std::span<const std::int64_t> priority;     // per operation, unless a plan says otherwise
  std::span<const std::int32_t> ways;         // per operation: a set of ways
  std::span<const std::int64_t> after_start;  // operation i comes after after[after_start[i] .. after_start[i + 1])
  std::span<const std::int32_t> after;
  std::span<const std::int64_t> way_start;     // set s has ways way_start[s] .. way_start[s + 1], one or more
  std::span<const std::int64_t> motif_start;   // way w has motifs motif_start[w] .. motif_start[w + 1], one or more
  std::span<const std::int64_t> option_start;  // motif m has options option_start[m] .. option_start[m + 1], one or more
  std::span<const std::int32_t> stream;        // per option: of its channel; -1: none
  std::span<const double> starting;            // per option: seconds of a piece, whatever its size
  std::span<const double> amount, rate;        // per option: units of the whole, and units a second

  std::size_t size() const { return decision.size(); }
};

struct OperationPlan {
  std::span<const std::int32_t> pieces;    // per decision, >= 1
  std::span<const std::int32_t> way;       // per decision; operations that have fewer use their first
  std::span<const std::uint8_t> ranked;    // per decision: its rank is the priority of its operations
  std::span<const std::int64_t> rank;      // per decision
  std::span<const std::int32_t> options;   // per decision: for each motif its option; motifs that have fewer use the first
  std::int32_t width = 0;                  // options of a decision; what is missing is the first
};

struct OperationTasks {
  std::vector<std::int32_t> operation, piece;  // per task; the piece of a barrier is the number of pieces
  std::vector<std::int32_t> option;            // per task; -1: a barrier
  std::vector<std::int32_t> stream;
  std::vector<double> seconds;
  std::vector<std::int64_t> priority;
  std::vector<std::int64_t> after_start;
  std::vector<std::int32_t> after;
};

/// The tasks of a plan, operation by operation, piece by piece, motif by motif.
/// Throws std::invalid_argument where columns do not fit together or a plan cuts in less than one piece.
OperationTasks tasks_of(const Operations& operations, const OperationPlan& plan);

}  // namespace coppice
