// Collectives among ranks that all share one segment: each puts its data where the others read it.
//
// A collective is cut into rounds, and a round uses one slot of each rank's staging area. In a round every rank
//   stages:  copies what others need of it into its slot,
//   reduces: (all-reduce, reduce) adds up its share of all slots into its own slot,
//   takes:   copies or adds up into its output what it needs from all slots,
// and says after each that it is done. It waits before the second and third for what it reads there, and before it
// reuses a slot until everybody has taken from it. Stages of a round overlap with later parts of the rounds before,
// so that ranks seldom wait. Every byte is copied in once, added up once and copied out once, all in slots that stay in
// the caches: the rest is the unavoidable reading of inputs and writing of outputs.
//
// Small all-reduces need a single wait: everybody adds up everything. Sums go from rank 0 upwards, whatever the path,
// so that all ranks get the same bits, and the same as in any other call.
//
// Cost: bytes as above; per round, each rank looks at two or three counters of every other rank. Overflow: elements
// times their size times the ranks must fit 64 bits, as they do for buffers that lie in memory.
#pragma once

#include <span>
#include <vector>

#include "shared_memory/reduce.h"
#include "shared_memory/watch.h"

namespace coppice::shm {

enum class Collective : std::uint8_t {
  all_gather, reduce_scatter, all_reduce, broadcast, reduce, all_to_all, gather, scatter, barrier
};

/// One rank's part in a collective. Buffers as in coppice.program.dialects.rank.program; they may be the same memory where programs may
/// be in place.
struct DirectCall {
  Collective collective = Collective::barrier;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // First element of each rank's block in the buffer of M elements, and M: ranks + 1 entries from 0 on. For all_reduce,
  // broadcast and reduce only M counts. For all_to_all they are the blocks to each rank, the same for all senders.
  std::span<const std::int64_t> bounds;
  DataType type = DataType::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

/// The direct collectives of one rank. All ranks make the same calls in the same order.
class Direct {
 public:
  Direct(Segment& segment, int rank);

  /// Throws Failed, on this and all other ranks, if the collective does not complete.
  void run(const DirectCall& call, double timeout_s, const StopFlag& stop = {});

 private:
  Segment& segment_;
  const int rank_;
  bool is_reserved_ = false;
  std::uint64_t rounds_ = 0;  // finished so far, the same on all ranks
  std::vector<const void*> sources_;
  std::vector<std::byte> input_copy_;  // the input of an all-to-all in place
};

}  // namespace coppice::shm
