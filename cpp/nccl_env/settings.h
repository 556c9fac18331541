// A site's settings for NCCL: lines of NAME=VALUE, as in NCCL's own configuration files.
//
//   # what the cluster's owners measured
//   NCCL_ALGO=Ring
//   NCCL_TUNER_PLUGIN=/opt/coppice/libnccl-tuner-coppice.so
//   COPPICE_TUNER_TABLE=/opt/coppice/tuner.csv
//
// Empty lines and lines that begin with # are skipped; blanks around a line are; a name is set once. Names begin with
// NCCL_, RCCL_ or COPPICE_: the file speaks of communication only. A line that is not so refuses the whole file.
#pragma once

#include <map>
#include <stdexcept>
#include <string>

namespace coppice::nccl_env {

using Settings = std::map<std::string, std::string>;

/// What is wrong with a file, with its name and the line.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads a file's text; throws Refusal.
Settings parse_settings(const std::string& text, const std::string& file);

}  // namespace coppice::nccl_env
