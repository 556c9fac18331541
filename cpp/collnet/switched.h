// All-reduces by a switch in software (udp/client.h) beside the trees: sums of float32, and of float16 and bfloat16, which are
// float32 on the way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/stop.h"

namespace coppice::udp {
class Client;
}

namespace coppice::collnet {

struct Call;

/// Where a switch is, and the secret that it shares with its workers.
struct SwitchPlace {
  std::string host;
  int port = 0;
  std::string secret;

  std::string text() const { return host + ":" + std::to_string(port); }
};

/// The switch of COPPICE_COLLNET_SWITCH and the secret in the file of COPPICE_SWITCH_SECRET, nothing where there is none;
/// throws Failure(kInvalidArgument).
std::optional<SwitchPlace> given_switch();

/// One node's end of the switch. What goes wrong there is thrown as std::exception with a sentence.
class Switched {
 public:
  /// `cookie` is the same on all nodes of a communicator, and another one in others: it names the job.
  Switched(const SwitchPlace& place, int node, int nodes, std::uint64_t cookie);
  ~Switched();

  /// Whether a call goes by the switch: the same on all nodes where the calls are.
  static bool takes(const Call& call);

  /// Returns when all nodes have joined.
  void join(int seconds);

  /// Returns when the sum is there; throws Cancelled when `stop` says so.
  void all_reduce(const Call& call, const StopFlag& stop);

  /// Leaves, with the reason where that is no good end.
  void leave(const std::string& why);

 private:
  std::unique_ptr<udp::Client> client_;
};

}  // namespace coppice::collnet
