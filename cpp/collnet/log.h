// One line for people through the logger that NCCL hands over; silent before it has.
#pragma once

#include <cstdio>
#include <string>

#include "collnet/abi.h"

namespace coppice::collnet {

inline Logger& logger() {
  static Logger known = nullptr;
  return known;
}

inline void warn(const std::string& sentence) {
  if (logger()) logger()(kWarn, kLogNet, "coppice", 0, "Coppice: %s", sentence.c_str());
}

inline void inform(const std::string& sentence) {
  if (logger()) logger()(kInfo, kLogInit | kLogNet, "coppice", 0, "Coppice: %s", sentence.c_str());
}

}  // namespace coppice::collnet
