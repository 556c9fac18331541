// The calendar of a port: who it serves when.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace coppice::recreation {

using Time = std::int64_t;

/// Entries that do not overlap, in their order.
class Calendar {
 public:
  /// The first time from `from` on at which the port is free for so long.
  Time gap(Time from, Time length) const {
    std::size_t i = after(from);
    if (i > 0) from = std::max(from, entries_[i - 1].end);
    while (i < entries_.size() && entries_[i].begin < from + length) from = std::max(from, entries_[i++].end);
    return from;
  }
  /// The last time up to `from` at which the port is free for so long.
  Time last_gap(Time from, Time length) const {
    std::size_t i = after(from + length - 1);
    for (; i > 0 && entries_[i - 1].end > from; --i) from = std::min(from, entries_[i - 1].begin - length);
    return from;
  }
  /// `from` is what a gap was found to be.
  void add(Time from, Time length, std::size_t owner) {
    entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(after(from)), {from, from + length, owner});
    load_ += length;
  }
  void remove(Time from, Time length) {
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(after(from)) - 1);
    load_ -= length;
  }
  /// Calls `use` with who holds the port until exactly this time, if there is somebody.
  template <typename Use>
  void until(Time time, Use use) const {
    std::size_t i = after(time);
    if (i > 0 && entries_[i - 1].begin == time) --i;
    if (i > 0 && entries_[i - 1].end == time) use(entries_[i - 1].owner);
  }
  /// Calls `use` with who holds the port from exactly this time on, if there is somebody.
  template <typename Use>
  void from(Time time, Use use) const {
    const std::size_t i = after(time);
    if (i > 0 && entries_[i - 1].begin == time) use(entries_[i - 1].owner);
  }
  /// Sum of the lengths of all entries.
  Time load() const { return load_; }

 private:
  struct Entry {
    Time begin, end;
    std::size_t owner;
  };

  /// Number of entries that begin at this time or before.
  std::size_t after(Time time) const {
    const auto next = std::upper_bound(entries_.begin(), entries_.end(), time,
                                       [](Time each, const Entry& entry) { return each < entry.begin; });
    return static_cast<std::size_t>(next - entries_.begin());
  }

  std::vector<Entry> entries_;
  Time load_ = 0;
};

}  // namespace coppice::recreation
