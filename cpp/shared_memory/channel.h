// First in, first out: the messages from one rank to another, through a ring of bytes in shared memory.
//
// A message travels in parts of at most a quarter of the ring, so that copying in, copying out and messages of other
// pairs overlap, and short messages share the ring. Each part follows a line that says what it is; a part never wraps
// around, the rest of the ring is skipped instead. The receiver reads parts where they lie.
//
// Cost: each byte is copied in once; nothing is allocated. Overflow: positions count all bytes ever sent, in 64 bits.
#pragma once

#include <cstring>

#include "shared_memory/segment.h"

namespace coppice::shm {

/// What a part belongs to; the receiver compares it with what it expects.
struct MessageId {
  std::uint64_t run = 0;    // what both ranks carry out
  std::int64_t tag = 0;     // of the message within it
  std::int64_t bytes = 0;   // of the whole message
  bool operator==(const MessageId&) const = default;
};

struct RingControl {
  alignas(kCacheLine) std::atomic<std::uint64_t> written;  // bytes since the beginning, skipped ones included
  alignas(kCacheLine) std::atomic<std::uint64_t> read;
};
static_assert(sizeof(RingControl) <= Segment::kRingControl);

struct PartHeader {
  MessageId id;
  std::uint64_t bytes;     // of this part
  std::uint64_t is_skip;   // nothing follows: the next part is at the start of the ring
};
static_assert(sizeof(PartHeader) <= kCacheLine);

/// Where both ends keep the ring: its bytes, and how far it has been written and read.
class ChannelEnd {
 protected:
  ChannelEnd(Segment& segment, int from, int to, int own)
      : control_(reinterpret_cast<RingControl*>(segment.ring(from, to))),
        bytes_(segment.ring(from, to) + Segment::kRingControl),
        size_(segment.header().ring_bytes) {
    segment.reserve(control_, segment.ring_stride(), own);
  }

  static std::uint64_t room_for(std::size_t bytes) { return kCacheLine + (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }
  PartHeader* header() const { return reinterpret_cast<PartHeader*>(bytes_ + at_ % size_); }

  RingControl* control_;
  std::byte* bytes_;
  std::uint64_t size_;
  std::uint64_t at_ = 0;     // own position
  std::uint64_t other_ = 0;  // the other end's position when last looked at
};

class Sender : public ChannelEnd {
 public:
  Sender(Segment& segment, int from, int to) : ChannelEnd(segment, from, to, from) {}

  /// The most bytes of a part.
  std::size_t part_bytes() const { return size_ / 4 - kCacheLine; }

  /// Sends one part of `bytes` bytes if there is room. Returns: whether there was.
  bool send(const MessageId& id, const std::byte* data, std::size_t bytes) {
    std::uint64_t to_end = size_ - at_ % size_, need = room_for(bytes);
    bool skips = need > to_end;
    std::uint64_t end = at_ + need + (skips ? to_end : 0);
    if (end - other_ > size_) {
      other_ = control_->read.load(std::memory_order_acquire);
      if (end - other_ > size_) return false;
    }
    if (skips) {
      *header() = {id, 0, 1};
      at_ += to_end;
    }
    *header() = {id, bytes, 0};
    std::memcpy(reinterpret_cast<std::byte*>(header()) + kCacheLine, data, bytes);
    at_ += need;
    control_->written.store(at_, std::memory_order_release);
    return true;
  }
};

class Receiver : public ChannelEnd {
 public:
  Receiver(Segment& segment, int from, int to) : ChannelEnd(segment, from, to, to) {}

  struct Part {
    const MessageId* id = nullptr;  // null: nothing has arrived
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  /// The first part that has not been released, if it has arrived.
  Part look() {
    if (at_ == other_) {
      other_ = control_->written.load(std::memory_order_acquire);
      if (at_ == other_) return {};
    }
    if (header()->is_skip) at_ += size_ - at_ % size_;
    return {&header()->id, reinterpret_cast<const std::byte*>(header()) + kCacheLine, header()->bytes};
  }

  /// Gives back the part that `look` has shown.
  void release() {
    at_ += room_for(header()->bytes);
    control_->read.store(at_, std::memory_order_release);
  }

  /// So full that the sender may be waiting for room.
  bool is_crowded() {
    other_ = control_->written.load(std::memory_order_acquire);
    return other_ - at_ >= size_ / 2 - 2 * kCacheLine;
  }
};

}  // namespace coppice::shm
