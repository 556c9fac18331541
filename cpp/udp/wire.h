// Addresses of workers and switches, and the interface by which the layers without sockets send sealed packets.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "aggregation/node.h"

namespace coppice::udp {

using aggregation::Bytes;
using aggregation::Time;

inline constexpr Time kMillisecond = 1'000'000;
inline constexpr Time kSecond = 1'000'000'000;

// An IPv4 address and port, as numbers of this machine.
struct Address {
  std::uint32_t host = 0;
  std::uint16_t port = 0;
  bool operator==(const Address&) const = default;
  std::uint64_t number() const { return static_cast<std::uint64_t>(host) << 16 | port; }
  // As in 127.0.0.1:9000.
  std::string text() const;
};

// Packets on their way out. A packet is written into the room that is made for it, so that it is copied once.
class Wire {
 public:
  virtual ~Wire() = default;
  // Room for a packet of so many bytes, until the next call of either.
  virtual std::uint8_t* room(std::size_t bytes) = 0;
  // Sends what was written into the room to each of `to`.
  virtual void send(std::span<const Address> to) = 0;
};

}  // namespace coppice::udp
