#include "udp/sockets.h"

#include <algorithm>
#include <stdexcept>

#include "testing/testing.h"

namespace coppice::udp {
namespace {

constexpr Address kHere{0x7F000001, 0};

// All packets that come until so many have come.
std::vector<std::vector<std::uint8_t>> taken(Intake& intake, std::size_t count) {
  std::vector<std::vector<std::uint8_t>> all;
  bool unreachable = false;
  for (int tries = 0; all.size() < count && tries < 1000; ++tries) {
    for (const Received& each : intake.batch(10 * kMillisecond, unreachable)) {
      all.emplace_back(each.packet.begin(), each.packet.end());
    }
  }
  return all;
}

TEST(udp_batches_arrive_whole_and_in_order) {
  for (const bool segments : {true, false}) {
    Socket from(kHere), first(kHere), second(kHere);
    Intake to_first(first), to_second(second);
    Batch batch(from, false, segments);
    const Address both[] = {first.own(), second.own()};
    std::vector<std::vector<std::uint8_t>> wanted;
    // Runs of one length, shorter ones at their ends, single ones, empty ones, and more than one message carries.
    for (const std::size_t length : {100, 100, 100, 40, 100, 300, 300, 1, 0, 0, 8000, 8000, 8000, 8000, 8000, 8000, 8000,
                                     8000, 8000, 7999, 8001}) {
      wanted.emplace_back(length, static_cast<std::uint8_t>(wanted.size()));
    }
    for (int number = 0; number < 150; ++number) wanted.emplace_back(64, static_cast<std::uint8_t>(number));
    for (const auto& each : wanted) {
      std::copy(each.begin(), each.end(), batch.room(each.size()));
      batch.send(both);
    }
    bool unreachable = false;
    batch.flush(unreachable);
    CHECK(taken(to_first, wanted.size()) == wanted);
    CHECK(taken(to_second, wanted.size()) == wanted);
    CHECK_EQ(batch.packets(), 2 * wanted.size());
    CHECK_EQ(batch.lost(), 0u);
  }
}

TEST(udp_a_connected_socket_is_told_that_nothing_listens) {
  Address gone;
  {
    Socket closed(kHere);
    gone = closed.own();
  }
  Socket socket(kHere);
  socket.connect(gone);
  Batch batch(socket, true);
  Intake intake(socket);
  bool unreachable = false;
  for (int tries = 0; !unreachable && tries < 1000; ++tries) {
    *batch.room(1) = 0;
    batch.send({&gone, 1});
    batch.flush(unreachable);
    intake.batch(kMillisecond, unreachable);
  }
  CHECK(unreachable);
}

TEST(udp_addresses) {
  CHECK_EQ(resolved("127.0.0.1", 9000).text(), "127.0.0.1:9000");
  CHECK_THROWS(std::invalid_argument, resolved("127.0.0.1", 65536));
  CHECK_THROWS(std::invalid_argument, resolved("127.0.0.1", -1));
}

}  // namespace
}  // namespace coppice::udp
