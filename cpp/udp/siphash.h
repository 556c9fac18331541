// SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", INDOCRYPT 2012): the 64-bit tag of a packet.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "aggregation/node.h"

namespace coppice::udp {

using aggregation::Bytes;

struct Key {
  std::uint64_t first = 0, second = 0;
  bool operator==(const Key&) const = default;
};

// Keys and results are read as little-endian numbers, as in the paper.
inline std::uint64_t siphash(const Key& key, Bytes data) {
  const auto little = [](std::uint64_t value) {
    return std::endian::native == std::endian::little ? value : __builtin_bswap64(value);
  };
  std::uint64_t v0 = key.first ^ 0x736f6d6570736575u, v1 = key.second ^ 0x646f72616e646f6du;
  std::uint64_t v2 = key.first ^ 0x6c7967656e657261u, v3 = key.second ^ 0x7465646279746573u;
  const auto round = [&] {
    v0 += v1, v1 = std::rotl(v1, 13), v1 ^= v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16), v3 ^= v2;
    v0 += v3, v3 = std::rotl(v3, 21), v3 ^= v0;
    v2 += v1, v1 = std::rotl(v1, 17), v1 ^= v2, v2 = std::rotl(v2, 32);
  };
  const auto take = [&](std::uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  };
  const std::size_t whole = data.size() / 8 * 8;
  for (std::size_t at = 0; at < whole; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, data.data() + at, 8);
    take(little(word));
  }
  std::uint64_t last = static_cast<std::uint64_t>(data.size()) << 56;
  for (std::size_t at = whole; at < data.size(); ++at) last |= static_cast<std::uint64_t>(data[at]) << (8 * (at - whole));
  take(last);
  v2 ^= 0xff;
  round(), round(), round(), round();
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace coppice::udp
