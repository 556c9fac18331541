// The packet of ATP (Lao et al., NSDI 2021) and the arithmetic that its switch and its server share.
//
// All parties send one form, 274 bytes, numbers big-endian:
//
//   0 bitmap 4        whose contributions the values hold; in a packet downwards, whom it is for
//   4 workers 1       of the job, at most 32
//   5 flags 1         see below
//   6 application 2   the job's id
//   8 sequence 2      low 16 bits of the key
//  10 aggregator 2    slot of the switches that the packet may use
//  12 next 2          in a result: the slot that workers use from now on where they used this one
//  14 values 62 x 4   int32; float32 where `overflow` is set
// 262 key 8           number of the chunk, counted over all tensors of the job: with the application it is the tag of
//                     a slot, and never the same again, so that a packet late by a whole turn of sequences is known
// 270 length 4        values that mean something; the others are zero
//
//   direction          ack  resend  overflow
//   worker to server    0     0        0      contribution
//   worker to server    0     1        any    contribution sent again, or as float32: no slot takes it
//   worker to server    1     1        any    result of an earlier chunk, for a server that lost it
//   server to workers   1     0        any    result; frees the slot on its way
//   server to workers   0     1        0      "do you still have it?"
//   server to workers   0     1        1      "send this chunk as float32": the sum left the range of int32
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "aggregation/node.h"
#include "aggregation/values.h"

namespace coppice::aggregation::atp {

inline constexpr int kValues = 62;
inline constexpr int kHalf = 31;  // values of one pass through the pipeline
inline constexpr std::size_t kValuesAt = 14;
inline constexpr std::size_t kBytes = 274;
inline constexpr std::size_t kWireBytes = kBytes + 34;  // with Ethernet and IPv4
inline constexpr int kMostWorkers = 32;
inline constexpr int kMostWindow = 100;  // packets
inline constexpr std::int64_t kWindowStep = 1500;  // bytes that a window without a mark adds

enum Flag : std::uint8_t {
  kOverflow = 0x80,
  kServer = 0x60,      // which of four servers; this one has one
  kSecondHalf = 0x10,  // between the two passes, never on a wire
  kCongested = 0x08,
  kResend = 0x04,
  kCollision = 0x02,
  kAck = 0x01
};

struct Header {
  std::uint32_t bitmap = 0;
  std::uint8_t workers = 0;
  std::uint8_t flags = 0;
  std::uint16_t application = 0;
  std::uint16_t aggregator = 0;
  std::uint16_t next = 0;
  std::uint64_t key = 0;
  std::uint32_t length = 0;

  bool has(std::uint8_t flag) const { return (flags & flag) != 0; }
};

using Packet = std::array<std::uint8_t, kBytes>;

// False where the packet is none of this protocol.
bool read(Bytes packet, Header& header);
// All fields but the values.
void write(const Header& header, std::uint8_t* packet);

// Adds `count` values as they are on the wire to `sum`, and returns how many stuck by that. A register, or a value,
// that is at an end of its range is beyond it and stays there, whatever comes: so a sum that left the range is known.
int add_sticking(std::int32_t* sum, const std::uint8_t* wire, int count);

// The slot to try where `aggregator` was held by somebody else.
std::uint16_t rehashed(std::uint16_t application, std::uint16_t aggregator, int slots);
// The slot that place `at` of the window of an application starts with.
std::uint16_t first_aggregator(std::uint16_t application, int at, int slots);

inline std::uint32_t everybody(int workers) { return workers == 32 ? ~0u : (1u << workers) - 1; }

// Throws std::invalid_argument where the protocol cannot serve the job.
void check(const Job& job);

// A party's way to each worker: contributions of worker i come from `way[i]`, results for it go there.
struct Ways {
  std::array<Endpoint, kMostWorkers> way{};
  std::uint32_t mask = 0;                    // workers that are reached
  std::array<Endpoint, kMostWorkers> all{};  // every endpoint once
  int endpoints = 0;

  explicit Ways(std::span<const Endpoint> children);
  // Whether every worker of `bitmap` is reached over `from`.
  bool own(Endpoint from, std::uint32_t bitmap) const {
    for (std::uint32_t left = bitmap; left != 0; left &= left - 1) {
      if (way[static_cast<std::size_t>(std::countr_zero(left))] != from) return false;
    }
    return bitmap != 0 && from != kNobody;
  }
  // The workers of `bitmap` that are reached.
  std::vector<int> list(std::uint32_t bitmap) const;
  // Sends one packet to each endpoint that leads to a worker of `bitmap`.
  void send(std::uint32_t bitmap, Bytes packet, Outbox& out) const;
};

// Keys answered of late: the last 256, and everything before them.
class Answered {
 public:
  void add(std::uint64_t key);
  bool contains(std::uint64_t key) const {
    if (key >= end_) return false;
    return end_ - key > kReach || ((bits_[(key % kReach) / 64] >> (key % 64)) & 1) != 0;
  }
  void save(StateWriter& state) const;

 private:
  static constexpr std::uint64_t kReach = 256;
  std::uint64_t end_ = 0;
  std::array<std::uint64_t, kReach / 64> bits_{};
};

}  // namespace coppice::aggregation::atp
