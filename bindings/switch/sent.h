// What a node of a protocol sends, as Python sees it.
#pragma once

#include <cstdint>
#include <span>

#include "aggregation/node.h"
#include "bindings.h"

inline nb::bytes to_bytes(std::span<const std::uint8_t> bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// Collects packets as a list of (receivers, packet).
class Sent final : public coppice::aggregation::Outbox {
 public:
  using Outbox::send;
  void send(std::span<const coppice::aggregation::Endpoint> to, coppice::aggregation::Bytes packet) override {
    nb::list receivers;
    for (coppice::aggregation::Endpoint each : to) receivers.append(each);
    all.append(nb::make_tuple(receivers, to_bytes(packet)));
  }
  nb::list all;
};
