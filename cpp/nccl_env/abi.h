// What NCCL and its environment plugins have agreed on: ncclEnvPlugin_v1 (2.28.7) and v2 (2.30.7), in declarations of our
// own. Version 2 hands a logger over.
#pragma once

#include <cstdint>

namespace coppice::nccl_env {

enum LogLevel : int { kWarn = 2, kInfo = 3 };
enum LogTopic : unsigned long { kLogEnv = 0x80 };

using Logger = void (*)(int level, unsigned long topics, const char* file, int line, const char* format, ...);

struct EnvV1 {
  const char* name;
  int (*init)(std::uint8_t major, std::uint8_t minor, std::uint8_t patch, const char* suffix);
  int (*finalize)();
  const char* (*get)(const char* name);
};

struct EnvV2 {
  const char* name;
  int (*init)(std::uint8_t major, std::uint8_t minor, std::uint8_t patch, const char* suffix, Logger log);
  int (*finalize)();
  const char* (*get)(const char* name);
};

}  // namespace coppice::nccl_env
