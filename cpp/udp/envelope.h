// The envelope of every packet between a worker and a switch that runs as a process, and the keys that seal it.
//
// | bytes | field                                                                    |
// |-------|--------------------------------------------------------------------------|
// | 8     | tag: SipHash-2-4 of everything behind it, with the key of what it is for |
// | 2 1 1 | mark of these packets, version, kind                                     |
// | 4 4   | job, epoch (session of the job)                                             |
// | 2 2   | worker (`kSwitch` of packets to all), protocol (hash of its name)        |
// | 4     | length of the body                                                       |
//
// All in network order. What belongs to a job that is open is sealed with the key of its session; everything else with
// a key made of the secret that the switch and its workers share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aggregation/bytes.h"
#include "udp/siphash.h"

namespace coppice::udp {

inline constexpr std::size_t kHeader = 28;
inline constexpr std::size_t kMostBytes = 9000;  // of a packet with its envelope: a jumbo frame
inline constexpr std::uint16_t kSwitch = 0xFFFF;

enum class Kind : std::uint8_t {
  join = 1,   // worker: wants to take part
  challenge,  // switch: say that again with this cookie, so that it is seen that you are where you send from
  waiting,    // switch: you take part; others have not come yet
  ready,      // switch: all are there, and this is what the key is made of
  refused,    // switch: no, for this reason
  data,       // worker: body of the protocol
  result,     // switch: body of the protocol
  beat,       // worker: I am alive
  probe,      // worker: how is the job? (or: I leave it)
  state,      // switch: it is so
  status,     // anybody who knows the secret: what did you count?
  report,     // switch: this
};

struct Envelope {
  Kind kind = Kind::data;
  std::uint32_t job = 0, epoch = 0;
  std::uint16_t worker = 0, protocol = 0;
};

// Writes the head of a packet whose body lies behind it already, and seals both.
void seal(std::uint8_t* packet, std::size_t body_bytes, const Envelope& envelope, const Key& key);
// The head of a packet: nothing where it is none of ours, or has another length than it says. The tag is not checked.
std::optional<Envelope> opened(Bytes packet);
bool sealed_with(Bytes packet, const Key& key);
inline Bytes body_of(Bytes packet) { return packet.subspan(kHeader); }

std::uint16_t hash_of(std::string_view protocol);
// From the bytes that the switch and its workers share. Without any it is a public one, which guards against
// accidents alone.
Key master_key(std::string_view secret);
Key control_key(const Key& master);
Key job_key(const Key& master, std::uint32_t job, std::uint32_t epoch, std::uint64_t nonce);

// Fields of a body, one after the other, in network order.
class Writer {
 public:
  template <std::unsigned_integral T>
  Writer& put(T value) {
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof value);
    aggregation::store(bytes.data() + at, value);
    return *this;
  }
  Writer& put(double value) { return put(std::bit_cast<std::uint64_t>(value)); }
  // At most 65,535 bytes.
  Writer& put(std::string_view text);
  std::vector<std::uint8_t> bytes;
};

class Reader {
 public:
  explicit Reader(Bytes bytes) : left_(bytes) {}
  // 0 (or no text) and `broken` where the body is too short.
  template <std::unsigned_integral T>
  T take() {
    if (left_.size() < sizeof(T)) {
      broken = true;
      return 0;
    }
    const T value = aggregation::load<T>(left_.data());
    left_ = left_.subspan(sizeof(T));
    return value;
  }
  double take_double() { return std::bit_cast<double>(take<std::uint64_t>()); }
  std::string take_text(std::size_t most);
  // Only zeros are left.
  bool at_padding() const;
  bool broken = false;

 private:
  Bytes left_;
};

}  // namespace coppice::udp
