#include "alltoallv/alltoallv.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "core/wide.h"

namespace coppice {

static constexpr Amount kLargest = Amount{1} << 60;
static constexpr std::int32_t kMostPieces = 32;
static constexpr Amount kShorter = 4;  // pieces of short parts may be so much shorter
static constexpr Amount kCloseEnough = 1024;  // parts of the range in which a limit is searched
static constexpr std::int8_t kSend = 0, kReceive = 1, kCopy = 3;    // RowKind
static constexpr std::int8_t kInput = 0, kOutput = 1, kScratch = 2;  // RankBuffer

static Amount share(Amount whole, Amount part, Amount of) {
  if (whole < (Amount{1} << 31) && part < (Amount{1} << 31)) return whole * part / of;
  return static_cast<Amount>(Wide{whole} * part / of);
}

static void raise_to(AllToAllV::Busiest& most, Amount load, Amount capacity) {
  if (is_less(most.first, most.second, load, capacity)) most = {load, capacity};
}

static bool busier(const AllToAllV::Busiest& one, const AllToAllV::Busiest& other) {
  return is_less(other.first, other.second, one.first, one.second);
}

AllToAllV::AllToAllV(RailNetwork network, std::span<const Amount> counts, Amount least_saved)
    : network_(std::move(network)), ranks_(network_.ranks()), counts_(counts) {
  auto ranks = static_cast<std::size_t>(ranks_);
  if (network_.boxes < 1 || network_.width < 1 || network_.order.size() != ranks || network_.near.size() != ranks ||
      network_.far.size() != ranks || counts.size() != ranks * ranks)
    throw std::invalid_argument("an exchange needs an order, two rates and a row of counts for each rank");
  std::vector<std::uint8_t> known(ranks, 0);
  for (std::int32_t r : network_.order) {
    if (r < 0 || r >= ranks_ || known[r]) throw std::invalid_argument("an exchange needs each rank at one position");
    known[r] = 1;
  }
  auto wrong = [](Amount rate) { return rate <= 0 || rate >= kLargest / 2; };
  if (std::any_of(network_.near.begin(), network_.near.end(), wrong) || std::any_of(network_.far.begin(), network_.far.end(), wrong))
    throw std::invalid_argument("an exchange needs rates above 0 and below 2^59");
  fastest_ = *std::max_element(network_.far.begin(), network_.far.end());
  add_up();
  if (network_.crossing || network_.boxes == 1)
    choose_limit(least_saved);
  else
    choose_rails(least_saved);
}

// Sums by box. A negative count, or a sum that is too large, shows in the bits of all counts and of sums of 64 at most.
void AllToAllV::add_up() {
  std::int32_t width = network_.width, boxes = network_.boxes;
  bool plain = true;
  for (std::int32_t p = 0; p < ranks_; ++p) plain = plain && network_.order[p] == p;
  row_box_.assign(static_cast<std::size_t>(ranks_) * boxes, 0);
  column_box_.assign(static_cast<std::size_t>(ranks_) * boxes, 0);
  std::vector<Amount> row(ranks_), column(ranks_);
  Wide all = 0;
  Amount bits = 0;
  for (std::int32_t s = 0; s < boxes; ++s) {
    std::fill(column.begin(), column.end(), 0);
    for (std::int32_t p = s * width; p < (s + 1) * width; ++p) {
      const Amount* from = counts_.data() + static_cast<std::size_t>(network_.order[p]) * ranks_;
      if (!plain) {
        for (std::int32_t q = 0; q < ranks_; ++q) row[q] = from[network_.order[q]];
        from = row.data();
      }
      Amount seen = 0;
      for (std::int32_t q = 0; q < ranks_; ++q) {
        seen |= from[q];
        column[q] += from[q] & (kLargest - 1);
        longest_ = std::max(longest_, from[q]);
      }
      bits |= seen;
      if (bits < 0) throw std::invalid_argument("an exchange needs counts of 0 or more");
      if (bits >= kLargest) throw std::overflow_error("an exchange has fewer than 2^60 elements");
      Wide sum = 0;
      for (std::int32_t t = 0; t < boxes; ++t) {
        Wide to_box = 0;
        if (bits < (Amount{1} << 40)) {
          Amount short_sum = 0;
          for (std::int32_t q = t * width; q < (t + 1) * width; ++q) short_sum += from[q];
          to_box = short_sum;
        } else {
          for (std::int32_t q = t * width; q < (t + 1) * width; ++q) to_box += from[q];
        }
        if (to_box >= kLargest) throw std::overflow_error("an exchange has fewer than 2^60 elements");
        row_box_[static_cast<std::size_t>(p) * boxes + t] = static_cast<Amount>(to_box);
        sum += to_box;
      }
      all += sum;
      if (all >= kLargest) throw std::overflow_error("an exchange has fewer than 2^60 elements");
    }
    for (std::int32_t q = 0; q < ranks_; ++q) column_box_[static_cast<std::size_t>(q) * boxes + s] = column[q];
  }
  sent_.assign(ranks_, 0), got_.assign(ranks_, 0);
  for (std::int32_t p = 0; p < ranks_; ++p)
    for (std::int32_t t = 0; t < boxes; ++t) {
      if (t == box(p)) continue;
      sent_[p] += row_box_[static_cast<std::size_t>(p) * boxes + t];
      got_[p] += column_box_[static_cast<std::size_t>(p) * boxes + t];
    }
}

// What the NIC of p may carry where the fastest one carries `limit`.
Amount AllToAllV::quota(std::int32_t p, Amount limit) const {
  return network_.far[p] == fastest_ ? limit : share(limit, network_.far[p], fastest_);
}

// Least limit with room for all that any box sends and gets.
Amount AllToAllV::least_limit() const {
  std::int32_t width = network_.width;
  Amount result = 0;
  for (std::int32_t s = 0; s < network_.boxes; ++s) {
    Amount sent = 0, got = 0;
    Wide rates = 0;
    for (std::int32_t p = s * width; p < (s + 1) * width; ++p) sent += sent_[p], got += got_[p], rates += network_.far[p];
    Amount needed = std::max(sent, got);
    auto limit = static_cast<Amount>(std::min((Wide{needed} * fastest_ + rates - 1) / rates, Wide{kLargest}));
    auto room = [&] {
      Wide sum = 0;
      for (std::int32_t p = s * width; p < (s + 1) * width; ++p) sum += quota(p, limit);
      return sum;
    };
    while (room() < needed) ++limit;  // quotas are rounded down: at most once for each member
    result = std::max(result, limit);
  }
  return result;
}

// Gives what lies beyond the quotas of a box to those with room: `segments` of each position's row.
// `given` and `taken` receive what passes links inside the box from and to each position.
void AllToAllV::divide(const std::vector<Amount>& row, std::int32_t s, Amount limit, bool keep, std::vector<std::vector<Segment>>& segments,
                       std::vector<Amount>& given, std::vector<Amount>& taken) const {
  std::int32_t begin = s * network_.width, end = begin + network_.width;
  Amount beyond = 0, room = 0;
  for (std::int32_t p = begin; p < end; ++p) {
    Amount most = quota(p, limit);
    beyond += std::max<Amount>(0, row[p] - most);
    room += std::max<Amount>(0, most - row[p]);
  }
  std::int32_t over = begin;
  Amount before = 0, dealt = 0, left = 0;  // room before `over`, what positions before it took, and what `over` still takes
  auto open = [&] {
    while (over < end && !left) {
      before += std::max<Amount>(0, quota(over, limit) - row[over]);
      Amount upto = room ? (before == room ? beyond : share(beyond, before, room)) : 0;
      left = upto - dealt;
      dealt = upto;
      if (!left) ++over;
    }
  };
  for (std::int32_t p = begin; p < end; ++p) {
    Amount at = std::min(row[p], quota(p, limit));
    if (keep && at) segments[p].push_back({at, p});
    while (at < row[p]) {
      open();
      Amount amount = std::min(row[p] - at, left);
      at += amount, left -= amount;
      given[p] += amount, taken[over] += amount;
      if (keep) segments[p].push_back({at, over});
      if (!left) ++over;
    }
  }
}

AllToAllV::Busiest AllToAllV::far_at(Amount limit) const {
  Busiest most{0, 1};
  for (std::int32_t p = 0; p < ranks_; ++p) {
    Amount load = std::max(sent_[p], got_[p]);
    raise_to(most, std::min(load, quota(p, limit)), network_.far[p]);
  }
  return most;
}

AllToAllV::Busiest AllToAllV::near_at(Amount limit, bool keep) {
  std::vector<Amount> given(ranks_, 0), taken(ranks_, 0), handed(ranks_, 0), passed(ranks_, 0);
  if (keep) out_.assign(ranks_, {}), in_.assign(ranks_, {});
  for (std::int32_t s = 0; s < network_.boxes; ++s) {
    divide(sent_, s, limit, keep, out_, given, taken);
    divide(got_, s, limit, keep, in_, handed, passed);
  }
  Busiest most{0, 1};
  for (std::int32_t p = 0; p < ranks_; ++p) {
    auto inside = static_cast<std::size_t>(p) * network_.boxes + box(p);
    Amount own = count(p, p);
    raise_to(most, row_box_[inside] - own + given[p] + passed[p], network_.near[p]);
    raise_to(most, column_box_[inside] - own + taken[p] + handed[p], network_.near[p]);
  }
  return most;
}

void AllToAllV::choose_limit(Amount least_saved) {
  Wide least_free = 0;  // at the top no quota binds
  for (std::int32_t p = 0; p < ranks_; ++p)
    least_free = std::max(least_free, (Wide{std::max(sent_[p], got_[p])} * fastest_ + network_.far[p] - 1) / network_.far[p]);
  require_below_limit(least_free, "an exchange is too large for the rates of its NICs");
  auto top = static_cast<Amount>(least_free);
  auto worst_at = [&](Amount limit) {
    Busiest far = far_at(limit), near = near_at(limit, false);
    return busier(near, far) ? near : far;
  };
  direct_ = busiest_ = worst_at(top);
  Amount least = network_.boxes > 1 && network_.width > 1 ? least_limit() : top, best = top;
  if (least < top) {
    auto near_binds = [&](Amount limit) { return busier(near_at(limit, false), far_at(limit)); };
    Amount low = least, high = top, close = (top - least) / kCloseEnough;
    if (near_binds(low))
      while (high - low > close + 1) {
        Amount middle = low + (high - low) / 2;
        (near_binds(middle) ? low : high) = middle;
      }
    else
      high = low;
    for (Amount limit : {low, high})
      if (Busiest found = worst_at(limit); busier(busiest_, found)) busiest_ = found, best = limit;
  }
  // Saved on a NIC of the direct exchange's busiest rate: load x capacity of one against the other.
  relays_ = best < top && Wide{direct_.first} * busiest_.second - Wide{busiest_.first} * direct_.second >=
                              std::max(Wide{1}, Wide{least_saved} * busiest_.second);
  if (!relays_) best = top, busiest_ = direct_;
  near_at(best, true);
}

// Shares of rails in a tile, in proportion to the slower of their two NICs. Remainders go round, tile by tile.
void AllToAllV::rails_of(std::int32_t s, std::int32_t t, Amount total, std::vector<Amount>& room) const {
  std::int32_t width = network_.width;
  Amount rates = 0;
  auto rate = [&](std::int32_t k) { return std::min(network_.far[s * width + k], network_.far[t * width + k]); };
  for (std::int32_t k = 0; k < width; ++k) rates += rate(k);
  Amount sofar = 0, begin = 0;
  for (std::int32_t m = 0; m < width; ++m) {
    std::int32_t k = (m + s + t) % width;
    sofar += rate(k);
    Amount end = sofar == rates ? total : share(total, sofar, rates);
    room[k] = end - begin;
    begin = end;
  }
}

void AllToAllV::choose_rails(Amount least_saved) {
  std::int32_t width = network_.width, boxes = network_.boxes;
  // Loads of NICs by either way to deal, exactly; links inside boxes as if no element stayed where it is.
  std::array<std::vector<Amount>, 2> out, into;
  for (auto* each : {&out, &into})
    for (auto& loads : *each) loads.assign(ranks_, 0);
  std::vector<Amount> room(width);
  for (std::int32_t s = 0; s < boxes; ++s)
    for (std::int32_t t = 0; t < boxes; ++t) {
      if (s == t) continue;
      Amount total = 0;
      for (std::int32_t k = 0; k < width; ++k) {
        Amount amount = column_box_[static_cast<std::size_t>(t * width + k) * boxes + s];
        out[0][s * width + k] += amount, into[0][t * width + k] += amount;
        total += amount;
      }
      rails_of(s, t, total, room);
      for (std::int32_t k = 0; k < width; ++k) out[1][s * width + k] += room[k], into[1][t * width + k] += room[k];
    }
  std::array<Busiest, 2> found{Busiest{0, 1}, Busiest{0, 1}};
  for (int way = 0; way < 2; ++way)
    for (std::int32_t p = 0; p < ranks_; ++p) {
      auto inside = static_cast<std::size_t>(p) * boxes + box(p);
      Amount own = count(p, p), given = row_box_[inside] - own + sent_[p], taken = column_box_[inside] - own + out[way][p];
      if (way == 1) given += into[way][p], taken += got_[p];
      raise_to(found[way], std::max(out[way][p], into[way][p]), network_.far[p]);
      raise_to(found[way], std::max(given, taken), network_.near[p]);
    }
  direct_ = found[0];
  relays_ = width > 1 && Wide{found[0].first} * found[1].second - Wide{found[1].first} * found[0].second >=
                             std::max(Wide{1}, Wide{least_saved} * found[1].second);
  busiest_ = relays_ ? found[1] : found[0];
}

// Parts of the block from p to q, whose first element is number `out_begin` of what p sends and `in_begin` of what q gets.
template <class Take>
void AllToAllV::cut(std::int32_t p, std::int32_t q, Amount out_begin, Amount in_begin, Take&& take) const {
  Amount length = count(p, q), offset = 0;
  auto at = [](const std::vector<Segment>& segments, Amount begin) {
    return std::upper_bound(segments.begin(), segments.end(), begin, [](Amount value, const Segment& each) { return value < each.end; });
  };
  if (!length) return;
  auto out = at(out_[p], out_begin), into = at(in_[q], in_begin);
  while (offset < length) {
    Amount upto = std::min({length, out->end - out_begin, into->end - in_begin});
    take(p, q, out->over, into->over, offset, upto - offset);
    offset = upto;
    if (offset == length) break;
    if (out->end - out_begin == offset) ++out;
    if (into->end - in_begin == offset) ++into;
  }
}

// Parts of a tile over rails.
template <class Take>
void AllToAllV::deal(std::int32_t s, std::int32_t t, Take&& take) const {
  std::int32_t width = network_.width;
  std::vector<Amount> done(static_cast<std::size_t>(width) * width, 0), room(width);
  auto rail = [&](std::int32_t i, std::int32_t j, std::int32_t k, Amount most) {
    Amount length = count(s * width + i, t * width + j);
    Amount amount = std::min({most, length - done[i * width + j], room[k]});
    if (amount <= 0) return;
    take(s * width + i, t * width + j, s * width + k, t * width + k, done[i * width + j], amount);
    done[i * width + j] += amount;
    room[k] -= amount;
  };
  auto each = [&](auto&& act) {
    for (std::int32_t i = 0; i < width; ++i)
      for (std::int32_t j = 0; j < width; ++j)
        if (Amount length = count(s * width + i, t * width + j)) act(i, j, length);
  };
  if (!relays_) {
    each([&](std::int32_t i, std::int32_t j, Amount length) { room[j] = length, rail(i, j, j, length); });
    return;
  }
  Amount total = 0;
  for (std::int32_t k = 0; k < width; ++k) total += row_box_[static_cast<std::size_t>(s * width + k) * network_.boxes + t];
  if (!total) return;
  rails_of(s, t, total, room);
  for (std::int32_t i = 0; i < width; ++i) rail(i, i, i, total);
  each([&](std::int32_t i, std::int32_t j, Amount length) {
    if (i != j) rail(i, j, i, length / 2), rail(i, j, j, length - length / 2);
  });
  each([&](std::int32_t i, std::int32_t j, Amount length) { rail(i, j, i, length), rail(i, j, j, length); });
  std::int32_t k = 0;
  each([&](std::int32_t i, std::int32_t j, Amount length) {
    while (done[i * width + j] < length) {
      while (!room[k]) ++k;
      rail(i, j, k, length);
    }
  });
}

// Parts of all blocks that box s sends or gets. Rows of elements begin with the next box and the same member, so that no two
// ranks send to one at a time where blocks are equal.
template <class Take>
void AllToAllV::each_part_of_box(std::int32_t s, Take&& take) const {
  std::int32_t width = network_.width, boxes = network_.boxes;
  for (std::int32_t p = s * width; p < (s + 1) * width; ++p)
    for (std::int32_t q = s * width; q < (s + 1) * width; ++q)
      if (Amount length = count(p, q)) take(p, q, p, q, Amount{0}, length);
  if (!network_.crossing) {
    for (std::int32_t t = 0; t < boxes; ++t)
      if (t != s) deal(s, t, take), deal(t, s, take);
    return;
  }
  // Where a block begins in the rows of its ends: boxes before its box, and members before its member.
  std::vector<Amount> into(ranks_), out(ranks_);
  auto from_box = [&](std::int32_t from, std::int32_t q) {  // elements that q gets from boxes before `from`
    Amount sum = 0;
    for (std::int32_t d = boxes - 1; d > 0; --d) {
      std::int32_t each = (box(q) + d) % boxes;
      if (each == from) return sum;
      sum += column_box_[static_cast<std::size_t>(q) * boxes + each];
    }
    return sum;
  };
  auto to_box = [&](std::int32_t p, std::int32_t to) {
    Amount sum = 0;
    for (std::int32_t d = 1; d < boxes; ++d) {
      std::int32_t each = (box(p) + d) % boxes;
      if (each == to) return sum;
      sum += row_box_[static_cast<std::size_t>(p) * boxes + each];
    }
    return sum;
  };
  auto tile = [&](std::int32_t from, std::int32_t to) {
    for (std::int32_t j = 0; j < width; ++j) into[j] = from_box(from, to * width + j);
    for (std::int32_t i = 0; i < width; ++i) out[i] = to_box(from * width + i, to);
    std::vector<Amount> out_begin(static_cast<std::size_t>(width) * width), in_begin(out_begin.size());
    for (std::int32_t i = 0; i < width; ++i)
      for (std::int32_t m = 0; m < width; ++m) {
        std::int32_t j = (i + m) % width;
        out_begin[i * width + j] = out[i];
        out[i] += count(from * width + i, to * width + j);
      }
    for (std::int32_t j = 0; j < width; ++j)
      for (std::int32_t m = 0; m < width; ++m) {
        std::int32_t i = (j + width - m) % width;
        in_begin[i * width + j] = into[j];
        into[j] += count(from * width + i, to * width + j);
      }
    for (std::int32_t i = 0; i < width; ++i)
      for (std::int32_t j = 0; j < width; ++j) cut(from * width + i, to * width + j, out_begin[i * width + j], in_begin[i * width + j], take);
  };
  for (std::int32_t t = 0; t < boxes; ++t)
    if (t != s) tile(s, t), tile(t, s);
}

std::vector<BlockPart> AllToAllV::parts(std::int32_t rank) const {
  auto at = std::find(network_.order.begin(), network_.order.end(), rank);
  if (at == network_.order.end()) throw std::invalid_argument("there is no such rank in the exchange");
  auto own = static_cast<std::int32_t>(at - network_.order.begin());
  std::vector<BlockPart> result;
  each_part_of_box(box(own), [&](std::int32_t p, std::int32_t q, std::int32_t out, std::int32_t into, Amount offset, Amount length) {
    if (p != own && q != own && out != own && into != own) return;
    const auto& rank_at = network_.order;
    result.push_back({rank_at[p], rank_at[out], rank_at[into], rank_at[q], offset, length});
  });
  std::sort(result.begin(), result.end(), [](const BlockPart& one, const BlockPart& other) {
    return std::tie(one.source, one.target, one.offset) < std::tie(other.source, other.target, other.offset);
  });
  std::size_t kept = 0;
  for (const BlockPart& each : result) {
    if (kept) {
      BlockPart& last = result[kept - 1];
      if (std::tie(last.source, last.target, last.out, last.into) == std::tie(each.source, each.target, each.out, each.into) &&
          last.offset + last.length == each.offset) {
        last.length += each.length;
        continue;
      }
    }
    result[kept++] = each;
  }
  result.resize(kept);
  return result;
}

RankColumns AllToAllV::program(std::int32_t rank, Amount piece) const {
  if (piece < 1) throw std::invalid_argument("pieces have 1 element or more");
  std::vector<BlockPart> own = parts(rank);
  RankColumns result;
  result.pieces = network_.boxes > 1 ? static_cast<std::int32_t>(std::clamp<Amount>(longest_ / piece, 1, kMostPieces)) : 1;
  std::vector<Amount> sent_at(ranks_ + 1, 0), got_at(ranks_ + 1, 0);
  for (std::int32_t r = 0; r < ranks_; ++r) {
    sent_at[r + 1] = sent_at[r] + counts_[static_cast<std::size_t>(rank) * ranks_ + r];
    got_at[r + 1] = got_at[r] + counts_[static_cast<std::size_t>(r) * ranks_ + rank];
  }
  result.input = sent_at[ranks_], result.output = got_at[ranks_];

  // Blocks that stay in a box are cut into pieces that take its links as long as a NIC's pieces take a NIC.
  Amount slowest_near = *std::min_element(network_.near.begin(), network_.near.end());
  Wide inside = Wide{std::max(piece, longest_ / result.pieces)} * slowest_near / fastest_;
  Amount shortest = std::max<Amount>(1, piece / kShorter), shortest_inside = static_cast<Amount>(std::clamp<Wide>(inside, shortest, kLargest));
  std::vector<std::int32_t> box_of(ranks_);
  for (std::int32_t p = 0; p < ranks_; ++p) box_of[network_.order[p]] = box(p);

  struct Row {
    std::int32_t step;
    std::int8_t kind, buffer, source;
    std::int32_t peer;
    Amount offset, length, source_offset;
    std::int32_t after;  // index of the row that it waits for, -1: none
  };
  std::vector<Row> rows;
  rows.reserve(2 * own.size() * static_cast<std::size_t>(result.pieces));
  for (const BlockPart& part : own) {
    std::array<std::int32_t, 4> stop{part.source, part.out, part.into, part.target};
    std::int32_t stops = 1;
    for (int each = 1; each < 4; ++each)
      if (stop[each] != stop[stops - 1]) stop[stops++] = stop[each];
    if (stops == 1) {
      rows.push_back({0, kCopy, kOutput, kInput, -1, got_at[part.source] + part.offset, part.length, sent_at[part.target] + part.offset, -1});
      continue;
    }
    std::int32_t place = 0;
    while (stop[place] != rank) ++place;
    bool first = place == 0, last = place + 1 == stops;
    std::int8_t buffer = first ? kInput : last ? kOutput : kScratch;
    Amount base = first ? sent_at[part.target] + part.offset : last ? got_at[part.source] + part.offset : result.scratch;
    if (!first && !last) result.scratch += part.length;
    Amount least = box_of[part.source] == box_of[part.target] ? shortest_inside : shortest;
    auto cuts = static_cast<std::int32_t>(std::clamp<Amount>(part.length / least, 1, result.pieces));
    for (std::int32_t j = 0; j < cuts; ++j) {
      Amount begin = share(part.length, j, cuts), end = share(part.length, j + 1, cuts);
      std::int32_t step = (2 * j + 1) * result.pieces / (2 * cuts) + place + (relays_ && part.out == part.source), got = -1;
      if (!first) {
        got = static_cast<std::int32_t>(rows.size());
        rows.push_back({step - 1, kReceive, buffer, -1, stop[place - 1], base + begin, end - begin, 0, -1});
      }
      if (!last) rows.push_back({step, kSend, buffer, -1, stop[place + 1], base + begin, end - begin, 0, got});
    }
  }
  // By step, and sends first: counted, since rows of one step stay in order.
  std::int32_t keys = 0;
  auto key = [](const Row& row) { return row.step * 4 + row.kind; };
  for (const Row& row : rows) keys = std::max(keys, key(row) + 1);
  std::vector<std::int32_t> start(keys + 1, 0), place_of(rows.size());
  for (const Row& row : rows) ++start[key(row) + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  for (std::size_t x = 0; x < rows.size(); ++x) place_of[x] = start[key(rows[x])]++;
  std::size_t n = rows.size();
  result.step.resize(n), result.peer.resize(n), result.tag.resize(n), result.kind.resize(n), result.buffer.resize(n);
  result.source.resize(n), result.offset.resize(n), result.length.resize(n), result.source_offset.resize(n);
  result.predecessors_start.assign(n + 1, 0);
  for (std::size_t x = 0; x < n; ++x) {
    const Row& row = rows[x];
    auto y = static_cast<std::size_t>(place_of[x]);
    result.step[y] = row.step, result.peer[y] = row.peer, result.kind[y] = row.kind, result.buffer[y] = row.buffer;
    result.source[y] = row.source, result.offset[y] = row.offset, result.length[y] = row.length;
    result.source_offset[y] = row.source_offset;
    result.predecessors_start[y + 1] = row.after >= 0;
  }
  for (std::size_t y = 0; y < n; ++y) result.predecessors_start[y + 1] += result.predecessors_start[y];
  result.predecessors.resize(static_cast<std::size_t>(result.predecessors_start[n]));
  for (std::size_t x = 0; x < n; ++x)
    if (rows[x].after >= 0) result.predecessors[result.predecessors_start[place_of[x]]] = place_of[rows[x].after];
  std::vector<std::int32_t> sends(ranks_, 0), receives(ranks_, 0);
  for (std::size_t y = 0; y < n; ++y)
    result.tag[y] = result.kind[y] == kCopy ? -1 : (result.kind[y] == kSend ? sends : receives)[result.peer[y]]++;
  return result;
}

}  // namespace coppice
