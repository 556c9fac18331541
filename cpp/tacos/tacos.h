// Greedy matching of chunks with links on the time-expanded network, as TACOS does it (Won, Elavazhagan, Srinivasan,
// Gupta and Krishna, "TACOS: Topology-Aware Collective Algorithm Synthesizer", MICRO 2024, section IV).
//
// Model. A *channel* leads from one rank to another: a link, or a path through switches. It takes a chunk `duration` from
// its first byte to its last, and holds each of its *ports* (the links that it takes) for a time of its own: a fast port
// in front of a slow one is held for its own share only. A port serves one chunk at a time, so channels that share a
// port of a switch exclude each other. A rank may pass a chunk on once it has all of it.
//
// Method. Time goes from event to event: arrivals of chunks and ports that fall free. At each, chunks that have come are
// taken in. Then every rank that still wants chunks matches them with its free channels: it draws one of the chunks that
// it wants and that the other end of a free channel has, and takes the channel by which it comes first. A chunk that is
// on its way already may be asked for again over a channel by which it comes strictly sooner; the later one of the two
// is then replaced by another chunk that its sender had at the start and that is still wanted, or dropped. Rules of how
// the chunk is drawn:
//   kRandom: evenly, as published.
//   kRarest: of those of which there are fewest copies (also on their way).
//   kLocal:  likewise; and a channel takes no chunk that some channel of shorter duration has, or will have, at its end.
// Many attempts differ in rule and random numbers (splitmix64); the one of the least time is kept, of equals the first.
//
// Cost: with R ranks of degree d, C chunks and W = C / 64, a transfer takes O(d^2 W) and, with the rarest first, O(C);
// an event takes O(d) where no ports are shared, otherwise O(R d). Memory: O(R C / 8) bytes and O(R C) transfers for
// each thread. Overflow: the sum of all durations a chunk could need is checked to stay below 2^62.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"

namespace coppice {

struct ChannelNetwork {
  std::int32_t num_ranks = 0;
  std::int32_t num_ports = 0;
  std::span<const std::int32_t> src;         // per channel, a rank
  std::span<const std::int32_t> dst;
  std::span<const std::int64_t> duration;    // per channel, above 0
  std::span<const std::int64_t> port_start;  // ports of channel k: port[port_start[k] .. port_start[k + 1]), at least one
  std::span<const std::int32_t> port;
  std::span<const std::int64_t> hold;        // per entry of `port`: how long it is held, above 0
};

struct ChunkDemand {
  std::span<const std::int32_t> source;  // per chunk, the rank that has it
  std::span<const std::int32_t> target;  // the rank that wants it, or -1: all of the group of its source
  std::span<const std::int32_t> group;   // per rank, its group: several collectives at once; empty: one group

  bool together(std::int32_t a, std::int32_t b) const {
    return group.empty() || group[static_cast<std::size_t>(a)] == group[static_cast<std::size_t>(b)];
  }
};

enum class MatchingRule : std::uint8_t { kRandom = 0, kRarest = 1, kLocal = 2 };

struct Matching {
  std::int64_t time = -1;            // when the last chunk has come; -1: some chunk cannot come, or not soon enough
  std::int64_t attempt = -1;
  std::vector<std::int64_t> start;   // per transfer, in the order of arrival
  std::vector<std::int32_t> channel;
  std::vector<std::int32_t> chunk;
};

/// Throws std::invalid_argument where columns do not fit together.
void check_matching(const ChannelNetwork& network, const ChunkDemand& demand);

/// One attempt. It is given up, with time -1, once it takes longer than `limit`.
/// Throws Cancelled where `stop` says so.
Matching match_chunks(const ChannelNetwork& network, const ChunkDemand& demand, MatchingRule rule, std::uint64_t seed,
                      std::int64_t limit, const StopFlag& stop = {});

/// The best of the attempts first .. first + count - 1, on so many threads; attempt i takes rules[i % size].
/// The result does not depend on the number of threads. `limit` as above, such as the best time of earlier attempts.
/// Throws std::invalid_argument where columns do not fit together, Cancelled where `stop` says so.
Matching best_matching(const ChannelNetwork& network, const ChunkDemand& demand, std::span<const MatchingRule> rules,
                       std::uint64_t seed, std::int64_t first, std::int64_t count, std::int32_t threads,
                       std::int64_t limit, const StopFlag& stop = {});

}  // namespace coppice
