#include "aggregation/node.h"

namespace coppice::aggregation {

const std::array<std::string_view, kCounts> kCountNames = {
    "received", "aggregated", "completed", "repeated",  "answered",     "forwarded", "evicted",
    "collided", "saturated",  "marked",    "sent",      "resent",       "malformed", "stranger",
    "out_of_range", "stale",  "ahead",     "bad_tag",   "bad_epoch",    "over_quota"};

}  // namespace coppice::aggregation
