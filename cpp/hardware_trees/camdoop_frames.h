// Frame types of Camdoop and the checks of its jobs, shared by hops and workers.
#pragma once

#include "hardware_trees/frame.h"

namespace coppice::aggregation::camdoop {

enum Type : std::uint8_t { kValues = 1, kSums = 2, kAcknowledged = 3, kRebuilt = 4, kHello = 5, kStart = 6 };

constexpr int kMostTrees = 64;

// Without the word that is the epoch of the tree.
inline std::size_t most_words(const Job& job) {
  return static_cast<std::size_t>(job.values) * (job.setting("pairs", 0) == 1 ? 2 : 1);
}

inline std::uint32_t setting(const Job& job, const char* name, std::uint32_t otherwise) {
  return static_cast<std::uint32_t>(job.setting(name, otherwise));
}

inline void check(const Job& job) {
  check_job(job);
  const auto within = [&](const char* name, double otherwise, double least, double most, const char* problem) {
    const double given = job.setting(name, otherwise);
    require(given >= least && given <= most && given == static_cast<double>(static_cast<std::int64_t>(given)), problem);
  };
  within("trees", 1, 1, kMostTrees, "expected 1 to 64 trees");
  within("tree", 0, 0, kMostTrees - 1, "expected a tree of 0 to 63");
  within("life", 0, 0, 0x1p32 - 1, "expected a life of 0 to 2^32 - 1");
  within("pairs", 0, 0, 1, "expected pairs of 0 or 1");
  within("first", 0, 0, 0x1p32 - 1, "expected a first number of 0 to 2^32 - 1");
  within("most", 1 << 20, 0, 1 << 30, "expected room for 0 to 2^30 pairs");
  require(job.values <= 8000, "expected 1 to 8000 values of a packet");
}

// Whether a frame has the words and the extra number of its type; `pairs` have keys in ascending order.
inline bool well_formed(const FrameHead& head, Bytes packet, const Job& job, bool pairs) {
  if (head.type < kValues || head.type > kStart || head.words == 0) return false;
  if (head.type == kAcknowledged) return head.words == 1;
  if (head.type != kValues && head.type != kSums) return head.words == 1 && head.extra == 0;
  if (!pairs) return head.words == 1 + job.values && head.extra == 0;
  if (head.words % 2 == 0 || head.words > 1 + 2 * job.values || head.extra > 1) return false;
  const std::uint8_t* at = packet.data() + FrameHead::kBytes + 4;
  for (int i = 1; i < head.words / 2; ++i) {
    if (load<Word>(at + 8 * i) <= load<Word>(at + 8 * (i - 1))) return false;
  }
  return true;
}

}  // namespace coppice::aggregation::camdoop
