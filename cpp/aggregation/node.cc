#include "aggregation/node.h"

namespace coppice::aggregation {

const std::array<std::string_view, kCounts> kCountNames = {
    "received", "aggregated", "completed", "duplicate", "answered",     "forwarded", "evicted",
    "collided", "saturated",  "marked",    "sent",      "resent",       "malformed", "unknown_sender",
    "out_of_range", "stale",  "future",    "bad_tag",   "bad_epoch",    "over_quota"};

}  // namespace coppice::aggregation
