// One processing engine of SwitchAgg: pairs of a key and a value, combined by key in two memories.
//
// The front memory is small and fast and has one place for each hash; the back memory is large. A pair that meets its
// key in the front is combined there, and one that finds its place empty is put there. Where another key has the
// place, that older pair goes to the back: it is combined with its key, or put into the next free entry, or, where
// there is none, handed to the caller, who passes it on. Draining moves the front to the back in the same way and then
// hands over the back, so a table hands out each key once where all of its keys had room.
//
// A value is a vector of elements ("lanes"). Time for a pair: two hashes and a chain of the back memory, which has as
// many heads as entries. Space: (front + back) (key_bytes + 4 lanes + a few) bytes, all of it taken at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/node.h"
#include "stream_trees/combine.h"

namespace coppice::aggregation {

struct Pair {
  Bytes key;
  const std::uint32_t* values;
};

std::uint32_t front_hash(Bytes key);
std::uint32_t back_hash(Bytes key);

class PairTable {
 public:
  PairTable(int front, int back, int key_bytes, int lanes, Operation operation, Element element);

  // Combines one pair with values as they arrived. `forward(Pair)` gets the pair that has no room, if there is one.
  template <class Forward>
  void add(Bytes key, const std::uint8_t* arrived, Counters& counters, Forward&& forward) {
    const std::size_t place = front_place(key);
    if (evicts(place, key, counters)) settle(place, counters, forward);
    put_in_front(place, key, arrived, counters);
  }
  // One step of draining: `forward(Pair)` gets at most one pair. False once the table is empty.
  template <class Forward>
  bool drain(Counters& counters, Forward&& forward) {
    for (; drained_ < front_; ++drained_) {
      if (front_used_[drained_] == 0) continue;
      settle(drained_++, counters, forward);
      return true;
    }
    if (drained_ < front_ + back_used_) {
      const std::size_t at = drained_++ - front_;
      forward(Pair{back_key(at), back_value(at)});
      return true;
    }
    clear();
    return false;
  }
  std::int64_t in_use() const { return static_cast<std::int64_t>(front_in_use_ + back_used_); }
  void save(StateWriter& state) const;

 private:
  std::size_t front_place(Bytes key) const;
  bool evicts(std::size_t place, Bytes key, Counters& counters);
  void put_in_front(std::size_t place, Bytes key, const std::uint8_t* arrived, Counters& counters);
  // The pair of a place in the front into the back, or to `forward`.
  template <class Forward>
  void settle(std::size_t place, Counters& counters, Forward&& forward) {
    const Pair pair{front_key(place), front_value(place)};
    if (!put_in_back(pair, counters)) {
      ++counters[Count::forwarded];
      forward(pair);
    }
    front_used_[place] = 0;
    --front_in_use_;
  }
  bool put_in_back(const Pair& pair, Counters& counters);
  void clear();

  Bytes front_key(std::size_t at) const { return {front_keys_.data() + at * key_bytes_, front_used_[at]}; }
  Bytes back_key(std::size_t at) const { return {back_keys_.data() + at * key_bytes_, back_lengths_[at]}; }
  std::uint32_t* front_value(std::size_t at) { return front_values_.data() + at * lanes_; }
  std::uint32_t* back_value(std::size_t at) { return back_values_.data() + at * lanes_; }

  std::size_t front_, back_, key_bytes_, lanes_;
  Operation operation_;
  Element element_;
  std::size_t front_in_use_ = 0, back_used_ = 0, drained_ = 0;
  std::vector<std::uint8_t> front_keys_, back_keys_;
  std::vector<std::uint8_t> front_used_, back_lengths_;  // lengths of keys; 0 in the front: empty
  std::vector<std::uint32_t> front_values_, back_values_;
  std::vector<std::int32_t> heads_, following_;  // chains of the back; -1 ends one
};

}  // namespace coppice::aggregation
