// Links between neighbours with credit: the receiver says how far the sender may go, so that no frame is ever lost for
// want of room, and both repeat what does not arrive.
//
// Frames are numbered in their order. The receiver acknowledges the number of the first that it misses, with the number
// before which there is room; the sender keeps its frames until they are acknowledged.
#pragma once

#include <algorithm>

#include "hardware_trees/frame.h"

namespace coppice::aggregation {

// Frames by their number, modulo the length; as long as a power of two, so that numbers may wrap around.
class FrameRing {
 public:
  FrameRing() = default;
  FrameRing(int frames, std::size_t words)
      : words_(words), kept_(std::bit_ceil(static_cast<std::size_t>(frames))), data_(kept_.size() * words) {}

  std::uint32_t length() const { return static_cast<std::uint32_t>(kept_.size()); }
  bool has(std::uint32_t number) const { return kept_[number % kept_.size()].there; }
  void put(std::uint32_t number, std::uint32_t extra, std::span<const Word> words) {
    kept_[number % kept_.size()] = {static_cast<std::uint32_t>(words.size()), extra, true};
    std::copy(words.begin(), words.end(), at(number));
  }
  void drop(std::uint32_t number) { kept_[number % kept_.size()].there = false; }
  void clear() {
    for (Kept& each : kept_) each.there = false;
  }
  std::span<const Word> words(std::uint32_t number) const {
    return {data_.data() + number % kept_.size() * words_, kept_[number % kept_.size()].count};
  }
  std::uint32_t extra(std::uint32_t number) const { return kept_[number % kept_.size()].extra; }
  void save(StateWriter& state) const {
    for (std::uint32_t place = 0; place < length(); ++place) {
      state << kept_[place].there;
      if (!kept_[place].there) continue;
      state << kept_[place].extra;
      for (Word word : words(place)) state << word;
    }
  }

 private:
  struct Kept {
    std::uint32_t count = 0, extra = 0;
    bool there = false;
  };
  Word* at(std::uint32_t number) { return data_.data() + number % kept_.size() * words_; }

  std::size_t words_ = 0;
  std::vector<Kept> kept_;
  std::vector<Word> data_;
};

// What came from a neighbour and is not used yet.
struct CreditReceiver {
  FrameRing ring;
  std::uint32_t room = 0;      // frames
  std::uint32_t expected = 0;  // first that is missing
  std::uint32_t used = 0;      // first that is not used
  std::uint32_t told = 0;      // before which the sender knows of room

  CreditReceiver() = default;
  CreditReceiver(int frames, std::size_t words) : ring(frames, words), room(static_cast<std::uint32_t>(frames)) {}
  void start(std::uint32_t number) {
    ring.clear();
    expected = used = number;
    told = number + room;
  }
  std::uint32_t limit() const { return used + room; }
  bool ready() const { return used != expected; }
  void use() { ring.drop(used++); }
  // The sender would soon run out of what it knows.
  bool should_tell() const { return told != limit() && 2 * (told - expected) <= room; }
  // A frame arrived: what became of it.
  Count take(std::uint32_t number, std::uint32_t extra, std::span<const Word> words) {
    if (after(number, expected) < 0) return Count::duplicate;
    if (after(number, limit()) >= 0) return Count::over_quota;
    if (ring.has(number)) return Count::duplicate;
    ring.put(number, extra, words);
    while (expected != limit() && ring.has(expected)) ++expected;
    return Count::aggregated;
  }
  void save(StateWriter& state) const {
    state << expected << used << told;
    ring.save(state);
  }
};

// What one neighbour has of a sender's frames.
struct CreditSender {
  std::uint32_t acknowledged = 0;  // first that the neighbour misses
  std::uint32_t sent = 0;          // next to send
  std::uint32_t limit = 0;         // before which there is room

  void start(std::uint32_t number, std::uint32_t room) {
    acknowledged = sent = number;
    limit = number + room;
  }
  bool may_send(std::uint32_t next) const { return sent != next && after(limit, sent) > 0; }
  // Whether the acknowledgement brings news; `next` is the number after the last frame there is.
  bool take(std::uint32_t number, std::uint32_t room_before, std::uint32_t next) {
    if (after(number, acknowledged) < 0 || after(number, next) > 0) return false;
    const bool news = number != acknowledged || after(room_before, limit) > 0;
    acknowledged = number;
    if (after(number, sent) > 0) sent = number;
    if (after(room_before, limit) > 0) limit = room_before;
    return news;
  }
  void save(StateWriter& state) const { state << acknowledged << sent << limit; }
};

}  // namespace coppice::aggregation
