#include "netreduce/netreduce_packet.h"

#include <stdexcept>
#include <string>

#include "core/hash.h"

namespace coppice::aggregation::netreduce {

bool read(Bytes bytes, Packet& packet) {
  if (bytes.size() < kBase || bytes[0] < 1 || bytes[0] > 3 || bytes[1] > (kHasHeader | kLast | kFromSwitch)) return false;
  packet.kind = static_cast<Kind>(bytes[0]);
  packet.flags = bytes[1];
  packet.flow = load<std::uint16_t>(bytes.data() + 2);
  packet.psn = load<std::uint32_t>(bytes.data() + 4);
  if (packet.kind != Kind::data) return bytes.size() == kBase && packet.flags == 0;
  std::size_t at = kBase;
  if (packet.has_header()) {
    if (bytes.size() < kBase + kHeader) return false;
    packet.job = load<std::uint32_t>(bytes.data() + 8);
    packet.message = load<std::uint32_t>(bytes.data() + 12);
    packet.packets = load<std::uint16_t>(bytes.data() + 16);
    packet.position = load<std::uint16_t>(bytes.data() + 18);
    if (packet.position >= packet.packets) return false;
    if ((packet.position + 1 == packet.packets) != ((packet.flags & kLast) != 0)) return false;
    at += kHeader;
  }
  if (packet.from_switch() && !packet.has_header()) return false;
  packet.payload = bytes.subspan(at);
  return !packet.payload.empty() && packet.payload.size() % 4 == 0;
}

std::size_t write(const Packet& packet, std::uint8_t* bytes) {
  bytes[0] = static_cast<std::uint8_t>(packet.kind);
  bytes[1] = packet.flags;
  store(bytes + 2, packet.flow);
  store(bytes + 4, packet.psn);
  if (packet.kind != Kind::data || !packet.has_header()) return kBase;
  store(bytes + 8, packet.job);
  store(bytes + 12, packet.message);
  store(bytes + 16, packet.packets);
  store(bytes + 18, packet.position);
  return kBase + kHeader;
}

std::uint32_t first_number(std::uint32_t job) { return static_cast<std::uint32_t>(mixed(job)); }

int message_packets(const Job& job) { return static_cast<int>(job.setting("message_packets", 16)); }

double fixed_point(const Job& job) { return job.element == Element::float32 ? job.setting("fixed_point", 0) : 0; }

void check(const Job& job) {
  const auto within = [](const char* what, double found, int low, int high) {
    if (found >= low && found <= high && found == static_cast<int>(found)) return;
    throw std::invalid_argument("expected " + std::string(what) + " from " + std::to_string(low) + " to " +
                                std::to_string(high) + " in a job of netreduce, found " + std::to_string(found));
  };
  within("workers", job.workers, 1, kMostWorkers);
  within("values of a packet", job.values, 1, kMostValues);
  within("a window in messages", job.window, 1, kMostWindow);
  within("`message_packets`", job.setting("message_packets", 16), 1, kMostPackets);
  if (!(job.setting("fixed_point", 0) >= 0)) {
    throw std::invalid_argument("expected `fixed_point` of 0 or more in a job of netreduce");
  }
}

}  // namespace coppice::aggregation::netreduce
