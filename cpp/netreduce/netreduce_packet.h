// The packet of NetReduce (Liu et al., arXiv 2009.09736; ASPLOS 2023), and what all its parties agree on.
//
// Hosts keep reliable connections in a logical ring: worker i sends to worker i + 1, and numbers its packets (PSN). The
// switch in between adds up, and puts the sum into every one of the packets on its way. Only the first packet of a
// message has a header that says what it is part of; the others are known by flow and number. Numbers are big-endian:
//
//  0 kind 1       see below
//  1 flags 1      header present; last packet of its message; from a switch
//  2 flow 2       the sending worker (of an acknowledgement: whose packets are acknowledged)
//  4 psn 4        number of the packet in its flow; of an acknowledgement, the next one expected
//  8 header 12    where present: job 4, message 4, packets of the message 2, position of this one 2
//  then           values x 4, as many as the packet has: int32 or float32
//
// Between switches every packet has the header, and needs no number. Of a connection, both ends know the first number.
#pragma once

#include <array>
#include <cstdint>

#include "aggregation/bytes.h"
#include "aggregation/node.h"

namespace coppice::aggregation::netreduce {

inline constexpr std::size_t kBase = 8;
inline constexpr std::size_t kHeader = 12;
inline constexpr int kMostWorkers = 64;
inline constexpr int kMostValues = 1024;     // of one packet
inline constexpr int kMostPackets = 4096;    // of one message
inline constexpr int kMostWindow = 64;       // messages

enum class Kind : std::uint8_t { data = 1, acknowledged = 2, missing = 3 };
inline constexpr std::uint8_t kHasHeader = 1;
inline constexpr std::uint8_t kLast = 2;
inline constexpr std::uint8_t kFromSwitch = 4;

struct Packet {
  Kind kind = Kind::data;
  std::uint8_t flags = 0;
  std::uint16_t flow = 0;
  std::uint32_t psn = 0;
  std::uint32_t job = 0;
  std::uint32_t message = 0;
  std::uint16_t packets = 0;
  std::uint16_t position = 0;
  std::span<const std::uint8_t> payload;

  bool has_header() const { return (flags & kHasHeader) != 0; }
  bool from_switch() const { return (flags & kFromSwitch) != 0; }
  std::size_t values() const { return payload.size() / 4; }
};

// False where the bytes are none of this protocol.
bool read(Bytes bytes, Packet& packet);
// All but the payload; returns where that starts.
std::size_t write(const Packet& packet, std::uint8_t* bytes);

// Whether `one` comes before `other` in numbers that wrap.
inline bool before(std::uint32_t one, std::uint32_t other) { return static_cast<std::int32_t>(one - other) < 0; }

// Number of the first packet of a job's flows.
std::uint32_t first_number(std::uint32_t job);

// Packets of one message: setting `message_packets`.
int message_packets(const Job& job);
// Factor of the fixed point that floats travel as: setting `fixed_point`, 0 where they are added as they are.
double fixed_point(const Job& job);
// Throws std::invalid_argument where the protocol cannot serve the job.
void check(const Job& job);

}  // namespace coppice::aggregation::netreduce
