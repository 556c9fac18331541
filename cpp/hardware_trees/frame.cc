#include "hardware_trees/frame.h"

#include <string>

namespace coppice::aggregation {

void check_job(const Job& job) {
  require(job.workers >= 1 && job.workers <= 1024, "expected 1 to 1024 workers of a job");
  require(job.values >= 1 && job.values <= 16000, "expected 1 to 16000 values of a packet");
  require(job.window >= 1 && job.window <= 1 << 20, "expected a window of 1 to 2^20 packets");
  require(job.slots >= 1 && job.slots <= 1 << 20, "expected 1 to 2^20 slots of a job");
  require(job.timeout > 0 && job.give_up_timeout > 0, "expected a time-out and a give-up timeout above 0");
}

std::string describe_frame(Bytes packet) {
  FrameHead head;
  if (!FrameHead::read(packet, head)) return std::to_string(packet.size()) + " bytes that are no frame";
  return "type " + std::to_string(head.type) + " number " + std::to_string(head.number) + " of job " + std::to_string(head.job) +
         ", tree " + std::to_string(head.tree) + ", extra " + std::to_string(head.extra) + ", " + std::to_string(head.words) +
         " words";
}

}  // namespace coppice::aggregation
