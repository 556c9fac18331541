#include "stream_trees/pair_table.h"

#include <algorithm>
#include <cstring>

#include "aggregation/state.h"

namespace coppice::aggregation {

namespace {

// FNV-1a, and the finish of MurmurHash3 so that the low bits depend on all of it.
std::uint32_t hash(Bytes key, std::uint32_t start) {
  std::uint32_t found = start;
  for (std::uint8_t each : key) found = (found ^ each) * 16777619u;
  found ^= found >> 16;
  found *= 0x85ebca6bu;
  found ^= found >> 13;
  found *= 0xc2b2ae35u;
  return found ^ found >> 16;
}

// A place from 0 to `places` - 1 by the high bits of the hash.
std::size_t place_of(std::uint32_t hash, std::size_t places) {
  return static_cast<std::size_t>(std::uint64_t{hash} * places >> 32);
}

bool same(Bytes a, Bytes b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace

std::uint32_t front_hash(Bytes key) { return hash(key, 2166136261u); }
std::uint32_t back_hash(Bytes key) { return hash(key, 0x9e3779b9u); }

PairTable::PairTable(int front, int back, int key_bytes, int lanes, Operation operation, Element element)
    : front_(static_cast<std::size_t>(front)), back_(static_cast<std::size_t>(back)),
      key_bytes_(static_cast<std::size_t>(key_bytes)), lanes_(static_cast<std::size_t>(lanes)), operation_(operation),
      element_(element), front_keys_(front_ * key_bytes_), back_keys_(back_ * key_bytes_), front_used_(front_, 0),
      back_lengths_(back_, 0), front_values_(front_ * lanes_), back_values_(back_ * lanes_), heads_(back_, -1),
      following_(back_, -1) {}

std::size_t PairTable::front_place(Bytes key) const { return place_of(front_hash(key), front_); }

// Whether another key than `key` has the place.
bool PairTable::evicts(std::size_t place, Bytes key, Counters& counters) {
  if (front_used_[place] == 0 || same(front_key(place), key)) return false;
  ++counters[Count::evicted];
  return true;
}

void PairTable::put_in_front(std::size_t place, Bytes key, const std::uint8_t* arrived, Counters& counters) {
  if (front_used_[place] != 0) {
    ++counters[Count::aggregated];
    combine_arrived(operation_, element_, front_value(place), arrived, lanes_);
    return;
  }
  ++front_in_use_;
  front_used_[place] = static_cast<std::uint8_t>(key.size());
  std::copy(key.begin(), key.end(), front_keys_.begin() + static_cast<std::ptrdiff_t>(place * key_bytes_));
  keep(front_value(place), arrived, lanes_);
}

// False where the key is not there and no entry is free.
bool PairTable::put_in_back(const Pair& pair, Counters& counters) {
  if (back_ == 0) return false;
  std::int32_t& head = heads_[place_of(back_hash(pair.key), back_)];
  for (std::int32_t at = head; at >= 0; at = following_[static_cast<std::size_t>(at)]) {
    const auto entry = static_cast<std::size_t>(at);
    if (!same(back_key(entry), pair.key)) continue;
    ++counters[Count::aggregated];
    combine_kept(operation_, element_, back_value(entry), pair.values, lanes_);
    return true;
  }
  if (back_used_ == back_) return false;
  const std::size_t entry = back_used_++;
  back_lengths_[entry] = static_cast<std::uint8_t>(pair.key.size());
  std::copy(pair.key.begin(), pair.key.end(), back_keys_.begin() + static_cast<std::ptrdiff_t>(entry * key_bytes_));
  std::copy(pair.values, pair.values + lanes_, back_value(entry));
  following_[entry] = head;
  head = static_cast<std::int32_t>(entry);
  return true;
}

void PairTable::clear() {
  back_used_ = drained_ = 0;
  std::fill(heads_.begin(), heads_.end(), -1);
}

void PairTable::save(StateWriter& state) const {
  const auto pair = [&](Bytes key, const std::uint32_t* values) { (state << key).put(values, lanes_); };
  state << drained_ << front_in_use_;
  for (std::size_t at = 0; at < front_; ++at) {
    if (front_used_[at] == 0) continue;
    state << at;
    pair(front_key(at), front_values_.data() + at * lanes_);
  }
  state << back_used_;
  for (std::size_t at = 0; at < back_used_; ++at) pair(back_key(at), back_values_.data() + at * lanes_);
}

}  // namespace coppice::aggregation
