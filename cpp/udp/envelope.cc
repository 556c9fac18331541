#include "udp/envelope.h"

#include <algorithm>

namespace coppice::udp {

namespace {

constexpr std::uint16_t kMark = 0xC0BB;
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kTag = 8;

// A key of 128 bits from another one and what it is for.
Key derived(const Key& from, std::string_view purpose, std::uint32_t job, std::uint32_t epoch, std::uint64_t nonce) {
  Writer text;
  text.put(std::uint8_t{0}).put(purpose).put(job).put(epoch).put(nonce);
  Key made;
  made.first = siphash(from, text.bytes);
  text.bytes[0] = 1;
  made.second = siphash(from, text.bytes);
  return made;
}

}  // namespace

void seal(std::uint8_t* packet, std::size_t body_bytes, const Envelope& envelope, const Key& key) {
  using aggregation::store;
  store(packet + 8, kMark);
  packet[10] = kVersion;
  packet[11] = static_cast<std::uint8_t>(envelope.kind);
  store(packet + 12, envelope.job);
  store(packet + 16, envelope.epoch);
  store(packet + 20, envelope.worker);
  store(packet + 22, envelope.protocol);
  store(packet + 24, static_cast<std::uint32_t>(body_bytes));
  store(packet, siphash(key, {packet + kTag, kHeader - kTag + body_bytes}));
}

std::optional<Envelope> opened(Bytes packet) {
  using aggregation::load;
  if (packet.size() < kHeader || packet.size() > kMostBytes) return std::nullopt;
  const std::uint8_t* at = packet.data();
  if (load<std::uint16_t>(at + 8) != kMark || at[10] != kVersion) return std::nullopt;
  if (at[11] < static_cast<std::uint8_t>(Kind::join) || at[11] > static_cast<std::uint8_t>(Kind::report)) {
    return std::nullopt;
  }
  if (load<std::uint32_t>(at + 24) != packet.size() - kHeader) return std::nullopt;
  return Envelope{static_cast<Kind>(at[11]), load<std::uint32_t>(at + 12), load<std::uint32_t>(at + 16),
                  load<std::uint16_t>(at + 20), load<std::uint16_t>(at + 22)};
}

bool sealed_with(Bytes packet, const Key& key) {
  return aggregation::load<std::uint64_t>(packet.data()) == siphash(key, packet.subspan(kTag));
}

std::uint16_t hash_of(std::string_view protocol) {
  const Bytes name(reinterpret_cast<const std::uint8_t*>(protocol.data()), protocol.size());
  return static_cast<std::uint16_t>(siphash(Key{}, name));
}

Key master_key(std::string_view secret) {
  // Digits of pi: nothing up the sleeve.
  constexpr Key kPublic{0x243f6a8885a308d3u, 0x13198a2e03707344u};
  Writer text;
  text.put(std::uint8_t{0}).put(static_cast<std::uint32_t>(secret.size()));
  text.bytes.insert(text.bytes.end(), secret.begin(), secret.end());
  Key made;
  made.first = siphash(kPublic, text.bytes);
  text.bytes[0] = 1;
  made.second = siphash(kPublic, text.bytes);
  return made;
}

Key control_key(const Key& master) { return derived(master, "control", 0, 0, 0); }

Key job_key(const Key& master, std::uint32_t job, std::uint32_t epoch, std::uint64_t nonce) {
  return derived(master, "job", job, epoch, nonce);
}

Writer& Writer::put(std::string_view text) {
  const std::size_t length = std::min<std::size_t>(text.size(), 0xFFFF);
  put(static_cast<std::uint16_t>(length));
  bytes.insert(bytes.end(), text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
  return *this;
}

std::string Reader::take_text(std::size_t most) {
  const std::size_t length = take<std::uint16_t>();
  if (broken || length > most || length > left_.size()) {
    broken = true;
    return {};
  }
  std::string text(reinterpret_cast<const char*>(left_.data()), length);
  left_ = left_.subspan(length);
  return text;
}

bool Reader::at_padding() const {
  return std::all_of(left_.begin(), left_.end(), [](std::uint8_t each) { return each == 0; });
}

}  // namespace coppice::udp
