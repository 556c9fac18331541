// Max-min fair rates of flows that share links.
//
// Theory. Rates are max-min fair if none can be raised without lowering one that is not larger. They are unique, and
// *progressive filling* finds them: all rates grow together until a link is full; the flows on it keep their rate, and
// the rest grow on (Bertsekas and Gallager, Data Networks, 6.5.2). A link with c left for n growing flows fills up at
// rate c / n; that figure never falls as flows are settled, so a heap of stale figures finds the next link.
//
// Worked example: links of 10 and 4, flow a on the first, b on both, c on the second. The second is full at 2, which
// settles b and c; a gets the 8 that are left.
//
// Cost: O(H + (L + R) log L) for L links in use, H pairs of a flow and a link, and R figures that turn out to be stale,
// at most one per link between two links that fill up. Overflow: none, rates are doubles; the level never falls by
// rounding.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace coppice {

class FairShare {
 public:
  /// Args:
  ///   capacity: Of each link, > 0; kept by reference.
  explicit FairShare(std::span<const double> capacity);

  /// Fair rates of flows over the links that each uses; a flow uses one link at least.
  /// Links are settled in the order of their rates (ties: of their ids), and the flows of one in the order given.
  void solve(std::span<const std::span<const std::int32_t>> flows);

  double rate(std::size_t flow) const { return rate_[flow]; }
  /// The link that was full when the flow was settled.
  std::int32_t limit(std::size_t flow) const { return limit_[flow]; }

 private:
  std::span<const double> capacity_;
  std::vector<double> left_;                      // per link: capacity that is not settled
  std::vector<std::int32_t> growing_;             // per link: flows that are not settled
  std::vector<std::vector<std::int32_t>> users_;  // per link: its flows
  std::vector<std::int32_t> touched_;             // links in use
  std::vector<std::pair<double, std::int32_t>> heap_;
  std::vector<double> rate_;
  std::vector<std::int32_t> limit_;
};

}  // namespace coppice
