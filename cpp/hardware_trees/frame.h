// The frames of the protocols that add in hardware trees (streaming, SHARP, Camdoop): 16 bytes, then words of 4 bytes,
// all in network order. The layout is ours; the published ones are those of RoCE, InfiniBand and CamCube.
//   0     type, by protocol
//   1     tree of the job, where it has several
//   2-3   number of words that follow
//   4-7   job
//   8-11  number of the frame, counted on from tensor to tensor modulo 2^32
//   12-15 by protocol
#pragma once

#include <bit>
#include <span>
#include <vector>

#include "aggregation/bytes.h"
#include "aggregation/job_table.h"
#include "aggregation/node.h"
#include "aggregation/state.h"

namespace coppice::aggregation {

struct FrameHead {
  static constexpr std::size_t kBytes = 16;

  std::uint8_t type = 0;
  std::uint8_t tree = 0;
  std::uint16_t words = 0;
  std::uint32_t job = 0;
  std::uint32_t number = 0;
  std::uint32_t extra = 0;

  // False where the packet is not as long as it says.
  static bool read(Bytes packet, FrameHead& head) {
    if (packet.size() < kBytes) return false;
    const std::uint8_t* at = packet.data();
    head = {at[0], at[1], load<std::uint16_t>(at + 2), load<std::uint32_t>(at + 4), load<std::uint32_t>(at + 8),
            load<std::uint32_t>(at + 12)};
    return packet.size() == kBytes + 4 * std::size_t{head.words};
  }
  void write(std::uint8_t* at) const {
    at[0] = type;
    at[1] = tree;
    store(at + 2, words);
    store(at + 4, job);
    store(at + 8, number);
    store(at + 12, extra);
  }
};

// For who reads what went wrong.
std::string describe_frame(Bytes packet);

using Word = std::uint32_t;

// A frame to be sent, in memory that is taken once.
class FrameBuffer {
 public:
  explicit FrameBuffer(int most_words = 0) : bytes_(FrameHead::kBytes + 4 * static_cast<std::size_t>(most_words)) {}
  Bytes with(FrameHead head, std::span<const Word> words = {}) {
    head.words = static_cast<std::uint16_t>(words.size());
    head.write(bytes_.data());
    std::uint8_t* at = bytes_.data() + FrameHead::kBytes;
    for (std::size_t i = 0; i < words.size(); ++i) store(at + 4 * i, words[i]);
    return Bytes(bytes_.data(), FrameHead::kBytes + 4 * words.size());
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

inline void load_words(Word* to, Bytes packet) {
  const std::uint8_t* at = packet.data() + FrameHead::kBytes;
  const std::size_t count = (packet.size() - FrameHead::kBytes) / 4;
  for (std::size_t i = 0; i < count; ++i) to[i] = load<Word>(at + 4 * i);
}

// `to` += `from`, by element; int32 wraps around.
inline void add_words(Element element, Word* to, const Word* from, std::size_t count) {
  if (element == Element::int32) {
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = std::bit_cast<Word>(std::bit_cast<float>(to[i]) + std::bit_cast<float>(from[i]));
    }
  }
}

// How far `a` is after `b`, negative if before, in serial arithmetic (RFC 1982).
inline std::int32_t after(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b); }

// So long after another time; waiting may be for ever.
inline Time later(Time start, Time wait) { return wait > kNever - start ? kNever : start + wait; }

// What all these protocols ask of a job.
void check_job(const Job& job);

}  // namespace coppice::aggregation
