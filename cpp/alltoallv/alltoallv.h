// An all-to-all of unequal blocks, planned while it is called: from the counts that ranks exchange anyway, in microseconds,
// and the same on every rank.
//
// two_stage/ finds the best ways of blocks from lists of links, in milliseconds to seconds. Here a rank has two rates, that
// of its links inside the box and that of its NIC, and blocks go by at most three hops: inside the sending box to the rank
// whose NIC takes them out, between boxes, and inside the receiving box from the rank whose NIC took them in.
//
// *Crossing* (any NIC reaches any): what a rank has for other boxes is one row of elements, and so is what it gets. Of both
// a rank's own NIC carries the beginning, up to a limit that is the same for all NICs of one rate; what lies beyond is
// carried by NICs of the box that are below theirs, each in proportion to what it has left. The least limit is what the
// busiest box needs, on average over its NICs: no exchange is faster, and nothing is moved that need not be. Where links
// inside boxes would then be the limit instead, the limit is raised until both are equal; at the top it is direct exchange.
//
// *Rails* (a NIC reaches those of its number): what one box has for another is a tile, dealt to the rails in proportion to
// their NICs; or it goes over the rail of its receiver, where that is no slower.
//
// Where relays save less than they cost, all goes directly. Whole numbers decide everything, so all ranks decide alike.
//
// Every part of a block is cut into as many pieces, or fewer where it is short or its links are fast; piece j passes between
// boxes at step j + 1, and inside them one step before and after. So each step is the whole exchange in small, all NICs are
// busy alike in it, and a rank passes on what it has while more arrives. Blocks that go directly are cut as well: of several
// that are under way at once, none is then left to end alone. Those that stay in a box have their few pieces spread over the
// steps, the first of them not at once: then NICs have work first.
//
// Cost: O(R^2) to add up counts and O(R W) cuts for a rank, with R ranks and W members of a box. Memory: R^2 / W + O(R W).
// Overflow: refused where the sum of counts reaches 2^60; products are taken in 128 bits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

/// Equal boxes, as the plan at run time knows them. Position p = box * width + member.
struct RailNetwork {
  std::int32_t boxes = 0, width = 0;
  std::vector<std::int32_t> order;  // rank at each position
  bool crossing = false;            // any NIC reaches any; otherwise those of one member only
  std::vector<Amount> near, far;    // per position: capacity inside the box, and of the NIC; > 0, in one unit

  std::int32_t ranks() const { return boxes * width; }
};

/// Consecutive elements of a block with one way: from `source` by `out` and `into` to `target`, repeated where it stays.
struct BlockPart {
  std::int32_t source, out, into, target;  // ranks
  Amount offset, length;                   // in the block
};

/// Rows of the program of a rank, as program/dialects/rank/program.py describes them.
struct RankColumns {
  std::vector<std::int32_t> step, peer, tag;
  std::vector<std::int8_t> kind, buffer, source;
  std::vector<Amount> offset, length, source_offset;
  std::vector<std::int64_t> predecessors_start;
  std::vector<std::int32_t> predecessors;
  Amount input = 0, output = 0, scratch = 0;  // elements
  std::int32_t pieces = 1;
};

class AllToAllV {
 public:
  using Busiest = std::pair<Amount, Amount>;  // elements, and the capacity that carries them

  /// Args:
  ///   counts: counts[r R + q] >= 0 elements from rank r to rank q.
  ///   least_saved: Relays are used where the busiest NIC has at least as many elements less by them.
  /// Throws std::invalid_argument where columns have wrong lengths or signs, std::overflow_error from 2^60 elements on.
  AllToAllV(RailNetwork network, std::span<const Amount> counts, Amount least_saved = 0);

  /// Whether blocks pass other ranks; all go directly otherwise.
  bool relays() const { return relays_; }
  /// The busiest NIC or link inside a box, and the same if all went directly (or over the rails of receivers).
  Busiest busiest() const { return busiest_; }
  Busiest busiest_directly() const { return direct_; }

  /// Parts that a rank sends, receives or passes on, by source, target and offset.
  std::vector<BlockPart> parts(std::int32_t rank) const;

  /// Args:
  ///   piece: The longest block is cut into pieces of so many elements, up to 32; in one box blocks stay whole.
  RankColumns program(std::int32_t rank, Amount piece) const;

 private:
  struct Segment {
    Amount end;         // of the row of elements
    std::int32_t over;  // position whose NIC carries it
  };

  Amount count(std::int32_t p, std::int32_t q) const {
    return counts_[static_cast<std::size_t>(network_.order[p]) * ranks_ + network_.order[q]];
  }
  std::int32_t box(std::int32_t p) const { return p / network_.width; }
  Amount quota(std::int32_t p, Amount limit) const;
  void add_up();
  void choose_limit(Amount least_saved);
  void choose_rails(Amount least_saved);
  Amount least_limit() const;
  Busiest far_at(Amount limit) const;
  Busiest near_at(Amount limit, bool keep);
  void divide(const std::vector<Amount>& row, std::int32_t box, Amount limit, bool keep, std::vector<std::vector<Segment>>& segments,
              std::vector<Amount>& given, std::vector<Amount>& taken) const;
  void rails_of(std::int32_t s, std::int32_t t, Amount total, std::vector<Amount>& room) const;
  template <class Take>
  void cut(std::int32_t p, std::int32_t q, Amount out_begin, Amount in_begin, Take&& take) const;
  template <class Take>
  void deal(std::int32_t s, std::int32_t t, Take&& take) const;
  template <class Take>
  void each_part_of_box(std::int32_t s, Take&& take) const;

  RailNetwork network_;
  std::int32_t ranks_;
  std::span<const Amount> counts_;
  bool relays_ = false;
  Busiest busiest_{0, 1}, direct_{0, 1};
  Amount fastest_ = 1, longest_ = 0;  // of the NICs' rates; of all blocks
  std::vector<Amount> row_box_, column_box_;  // [p B + t]: from position p to box t; [q B + s]: from box s to position q
  std::vector<Amount> sent_, got_;            // per position: to and from other boxes
  std::vector<std::vector<Segment>> out_, in_;  // crossing: which NIC carries what of a position's rows
};

}  // namespace coppice
