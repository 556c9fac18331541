// Puts missing terminals into trees by moving edges of other trees.
//
// A missing terminal (or one whose edge was taken off) looks for a path backwards from itself to any vertex of its tree
// that is not too deep. Paths over arcs with room come first. Otherwise it takes a path with up to two full arcs, which
// then carry too much; of the edges that use such an arc, one is taken off and looks for a path in the same way, up to
// some levels deep. What leads nowhere is taken back step by step. A bundle is split where only a part of it has to
// move and nothing else helps.
//
// Cost: each search takes O(m) for m arcs at most, mostly a few dozen; the number of searches for one terminal is
// limited, and the limit grows while nothing is found. All searches together end at a limit of work.
#pragma once

#include <cstdint>
#include <vector>

#include "core/stop.h"
#include "exchange/bundles.h"

namespace coppice {

class Mending {
 public:
  /// Args:
  ///   most_height: No terminal is hung deeper; what the bundles have already may not be deeper.
  ///   work: Arcs and edges to look at before the search is given up.
  Mending(Bundles& bundles, std::int32_t most_height, std::int64_t work);

  /// Puts in all that is missing. False: something is missing still.
  /// Args:
  ///   last_height: `most_height` may rise up to this.
  bool mend(std::int32_t last_height, const StopFlag& stop);

 private:
  static constexpr int kMostFull = 2;  // full arcs of a path
  static constexpr std::int32_t kNone = Bundles::kNone;

  struct Place {
    std::int32_t bundle;
    Vertex v;
  };
  struct Step {
    Place place;
    std::int32_t path;   // that was taken off; kNone: a path was hung
    std::int32_t depth;  // before
  };

  bool place(Place at, int levels);
  bool relieve(Arc full, int levels);
  std::int32_t search(Place at, Amount amount, int most_full, std::vector<std::int32_t>* over_full);
  bool uses(Place at, Arc e) const;
  void split(std::int32_t b, Amount amount);
  void hang(Place at, std::int32_t path);
  void take_off(Place at);
  void note_use(Place at, std::int32_t path);
  void roll_back(std::size_t mark);

  Bundles& bundles_;
  const Digraph& graph_;
  std::int32_t most_height_;
  std::vector<std::vector<Place>> users_;   // per arc: edges over it, and some that have left it
  std::vector<Place> missing_, still_missing_;
  std::vector<Step> journal_;               // what the current attempt has done
  std::vector<std::int32_t> open_;          // bundles that the current attempt is busy with
  std::int64_t searches_left_ = 0, work_left_;
  bool may_split_ = false;

  std::int32_t attempt_ = 0;
  std::vector<std::int32_t> failed_;        // failed_[e] == attempt_: e could not be relieved
  std::int32_t stamp_ = 0;
  std::vector<std::int32_t> seen_, done_;   // per vertex: == stamp_ in this search
  std::vector<int> full_of_;                // per vertex: full arcs of the way from it
  std::vector<Arc> next_;                   // per vertex: first arc of the way from it
  std::vector<Vertex> layer_[kMostFull + 1];  // vertices by full_of_
  std::vector<std::uint8_t> below_;         // per terminal index: in the subtree that looks for a path
  std::vector<Arc> path_;
};

}  // namespace coppice
