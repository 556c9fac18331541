#include "aggregation/frame.h"

#include <stdexcept>
#include <string>

namespace coppice::aggregation {

void require(bool holds, const char* problem) {
  if (!holds) throw std::invalid_argument(problem);
}

void check_job(const Job& job) {
  require(job.workers >= 1 && job.workers <= 1024, "expected 1 to 1024 workers of a job");
  require(job.values >= 1 && job.values <= 16000, "expected 1 to 16000 values of a packet");
  require(job.window >= 1 && job.window <= 1 << 20, "expected a window of 1 to 2^20 packets");
  require(job.slots >= 1 && job.slots <= 1 << 20, "expected 1 to 2^20 slots of a job");
  require(job.timeout > 0 && job.patience > 0, "expected a time-out and a patience above 0");
}

std::string describe_frame(Bytes packet) {
  FrameHead head;
  if (!FrameHead::read(packet, head)) return std::to_string(packet.size()) + " bytes that are no frame";
  return "type " + std::to_string(head.type) + " number " + std::to_string(head.number) + " of job " + std::to_string(head.job) +
         ", lane " + std::to_string(head.lane) + ", extra " + std::to_string(head.extra) + ", " + std::to_string(head.words) +
         " words";
}

Children::Children(std::span<const Endpoint> children, Endpoint parent)
    : all_(children.begin(), children.end()) {
  require(!children.empty() && children.size() <= 1024, "expected 1 to 1024 children");
  for (std::size_t i = 0; i < all_.size(); ++i) {
    require(all_[i] != parent && all_[i] >= 0, "expected children other than the parent, by endpoints of 0 and more");
    require(numbers_.emplace(all_[i], static_cast<int>(i)).second, "expected every child once");
  }
}

}  // namespace coppice::aggregation
