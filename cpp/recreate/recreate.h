// Ruin and recreate for chunks on links over time: part of a schedule is taken out and put back where there is room.
//
// Model. A channel leads from one rank to another and takes a chunk `duration`, from its start to the arrival. It holds
// each of its ports (links, and what a rank handles messages with) from `offset` after the start, for `hold`. All are by
// the size of the chunk. A port serves one chunk at a time, and a rank passes a chunk on once it has all of it. So a chunk
// waits at its sender alone, and never in a switch, where others could overtake it: who carries the schedule out in its
// order meets its times. Backwards in time it is the same model.
//
// Method (Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998;
// Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, "Record breaking optimization results using the ruin and recreate
// principle", J. Computational Physics 159, 2000). Every port has a calendar of what it serves when. What arrives after
// a target, which is a little below the best time so far, is late, and the sum of all lateness is to become zero. A
// round takes out a late arrival, something that it waited for, and some of what stands on ports nearby before it, each
// with all that its rank passes on of that chunk. Chunks come back one after another in random order: each grows its tree
// by the arrival that is soonest, in the first gap that all ports have, where a port that is full costs more (as in
// negotiated congestion; McMurchie and Ebeling, "PathFinder", FPGA 1995). What is hardly later in sum than the least so
// far is kept (record-to-record travel; Dueck, J. Computational Physics 104, 1993); otherwise all is as it was before.
// What is summed first has two trees on the same calendars: terms come to the source backwards in time from its turning
// time, each into the last gap that lets it come in time, and copies leave it from then on. What begins before the begin
// is late as well, and what is made small is the span.
//
// Cost: a chunk that comes back to R ranks with D channels between them takes O(D log D) and looks at the calendars of D
// channels at least once, each in O(log n) of its entries. Memory: O(R C) for C chunks, and an entry for each port of a
// transfer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"

namespace coppice {

/// Channels with their costs for chunks of several sizes.
struct SizedNetwork {
  std::int32_t num_ranks = 0;
  std::int32_t num_ports = 0;
  std::span<const std::int32_t> src;         // per channel, a rank
  std::span<const std::int32_t> dst;
  std::span<const std::int64_t> port_start;  // ports of channel k: port[port_start[k] .. port_start[k + 1]), 1 or more
  std::span<const std::int32_t> port;
  // All below 2^40:
  std::span<const std::int64_t> duration;  // per size and channel, above 0
  std::span<const std::int64_t> offset;    // per size and entry of `port`
  std::span<const std::int64_t> hold;      // likewise, above 0
};

/// What has to be where.
struct SizedChunks {
  std::span<const std::int32_t> source;  // per chunk, the rank that has it
  std::span<const std::int32_t> target;  // the rank that wants it, or -1: all others
  std::span<const std::int32_t> size;    // the number of its size
  bool summed = false;  // all ranks have a term: the sum of them comes to the source first, and from there to all
};

/// A schedule as an order of transfers, each of which goes as soon as its ports have a gap, but not before its time.
struct TransferOrder {
  std::span<const std::int64_t> start;
  std::span<const std::int32_t> channel;
  std::span<const std::int32_t> chunk;
  std::span<const std::uint8_t> adds = {};  // whether it brings a term; empty: none does
};

struct Recreated {
  std::int64_t time = 0;            // of the last arrival
  std::vector<std::int64_t> start;  // per transfer, in their order
  std::vector<std::int64_t> arrive;
  std::vector<std::int32_t> channel;
  std::vector<std::int32_t> chunk;
  std::vector<std::uint8_t> adds;
};

/// The best schedule found from `first` on, whose transfers bring every chunk to all ranks that want it, once to each,
/// after one term from each where it is summed.
///
/// @param looks  How often a calendar is looked at, at most: what the search costs.
/// @param enough A time that needs no further search.
/// Throws std::invalid_argument where columns do not fit together or `first` is no such schedule, Cancelled where `stop`
/// says so.
Recreated recreate(const SizedNetwork& network, const SizedChunks& chunks, const TransferOrder& first,
                   std::uint64_t seed, std::int64_t looks, std::int64_t enough, const StopFlag& stop = {});

}  // namespace coppice
