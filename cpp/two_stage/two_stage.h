// An all-to-all of unequal blocks between boxes, in two stages: over the links of a box, and between members of boxes that
// have one number (a rail), so that every rail carries as much as its links do and no NIC waits for another.
//
// A block from member i of box s to member j of box t goes by a *way*: rail k, which is a hop from i to k inside s, one
// from k to k between the boxes, and one from k to j inside t; hops from a member to itself are none. Where the network
// joins rails, the direct route is a way, too. Inside a box, way k leads over member k, and way j is the hop itself; one
// way more leads out by rail i, through the next box and back by rail j, since NICs may be idle where a block is large; and
// one comes back by a direct route.
//
// *Fill.* What box s has for box t is a tile. Its share of a rail is in proportion to the rail's slowest link, so every
// NIC of a box sends and receives the same: no exchange can be faster than a box's demand over all its NICs. Within a tile
// a block prefers rails i and j, which take one hop inside a box instead of two.
//
// *Sweep.* Where links inside a box are the limit, balance has cost too much of them. Let u(e) = load(e) / capacity(e) and
// U the largest. The soft maximum (1 / s) log sum exp(s u(e)) is at most log(links) / s above U, and its gradient is a
// length of links. Block by block flow moves from longer ways to the shortest, as far as the soft maximum falls (as in
// flow/path_flow.h, with a fixed set of ways instead of searches). The lengths bound what any routing reaches.
//
// Amounts are whole numbers of 1 / scale of a unit of demand: loads are exact, whatever the floats say that choose moves.
// Cost: fill O(R^2 W), a sweep O(R^2 W h), with R ranks, W members of a box and h links of a way; memory 8 R^2 W bytes.
// Overflow: refused where scale times the sum of all demands reaches 2^60.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"
#include "graph/digraph.h"

namespace coppice {

/// Boxes of equal size and the links of all hops. Position p = box * width + member.
struct BoxNetwork {
  std::int32_t boxes = 0, width = 0;
  std::vector<std::int64_t> near_start;  // hop i -> k of box s has links near[start[x]] .. near[start[x + 1]], x = (s W + i) W + k
  std::vector<Arc> near;
  std::vector<std::int64_t> far_start;   // rail k from box s to box t likewise, x = (s B + t) W + k
  std::vector<Arc> far;
  std::vector<std::int64_t> cross_start;  // the direct route from position p to q, x = p R + q; or empty: rails are apart
  std::vector<Arc> cross;
  std::vector<Amount> capacity;          // per link, > 0

  std::int32_t ranks() const { return boxes * width; }
};

/// How a tile is dealt to the rails.
enum class Deal : std::int32_t {
  kBalanced,  // the same on every rail, over rails i and j while they have room
  kKept,      // the same on every rail; senders keep what they can (the first balancing of FAST)
  kEven,      // every block over all rails alike
  kTarget,    // block (i, j) over rail j
  kDirect,    // block (i, j) by its direct route, over rail j where there is none
};

/// Blocks by source, target and way.
struct Parts {
  // Positions; a way is a member, or `width` for the direct route, inside a box `width` and `width` + 1 through the next one.
  std::vector<std::int32_t> source, target, way;
  std::vector<Amount> amount;                     // in 1 / scale of a unit of demand
};

class TwoStage {
 public:
  /// Args:
  ///   demand: demand[p R + q] >= 0 from position p to q; the diagonal does not count.
  ///   scale: Amounts are in 1 / scale of a unit of demand.
  /// Throws std::invalid_argument where columns have wrong lengths, std::overflow_error where amounts are too large.
  TwoStage(BoxNetwork network, std::span<const Amount> demand, Amount scale);

  /// Deals all blocks anew.
  void fill(Deal deal);

  /// One sweep over all blocks; `steepness` is s times the largest u.
  void sweep(double steepness, const StopFlag& stop = {});

  /// The largest load over capacity, in 1 / scale of a unit.
  double worst() const;

  /// Lengths of links for this steepness, largest 1.
  std::vector<double> lengths(double steepness) const;

  const std::vector<Amount>& loads() const { return load_; }
  Parts parts() const;

 private:
  struct Hops {
    std::span<const Arc> part[3];
  };

  Hops hops(std::int32_t p, std::int32_t q, std::int32_t way) const;
  std::size_t cell(std::int32_t p, std::int32_t q) const { return (static_cast<std::size_t>(p) * ranks_ + q) * ways_; }
  void add(std::int32_t p, std::int32_t q, std::int32_t way, Amount amount);
  void deal_tile(std::int32_t s, std::int32_t t, Deal deal, std::vector<Amount>& left);
  void quotas(std::int32_t s, std::int32_t t, Amount total, std::vector<Amount>& room) const;
  double length_of(const Hops& way) const;
  void relength(Arc e, double scale);
  void shift(std::int32_t p, std::int32_t q, std::int32_t from, std::int32_t to, double scale);

  BoxNetwork network_;
  Amount scale_;
  std::int32_t ranks_, ways_;
  std::vector<Amount> demand_, amount_, load_;
  std::vector<double> length_;
  std::vector<std::int32_t> mark_;
  double top_ = 0;
};

}  // namespace coppice
