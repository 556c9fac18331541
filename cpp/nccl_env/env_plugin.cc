// ncclEnvPlugin_v1 and v2: what NCCL asks of its environment, answered with a site's settings where a job says nothing.
//
// The environment of the job wins: it is nearer to the case at hand, it is how people try things and take them back, and
// NCCL's own configuration files stand behind it as well. The file is that of COPPICE_NCCL_SETTINGS, else
// /etc/coppice/nccl.conf. NCCL asks this library for its own variables only; those of COPPICE_ are put into the
// environment, where our other plugins look for them, unless they are there.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "nccl_env/abi.h"
#include "nccl_env/settings.h"

namespace coppice::nccl_env {

namespace {

constexpr const char* kVariable = "COPPICE_NCCL_SETTINGS";
constexpr const char* kPlace = "/etc/coppice/nccl.conf";

/// Never freed: NCCL holds on to the answers, also while the process ends.
Settings& settings() {
  static auto* const known = new Settings;
  return *known;
}

void say(Logger log, int level, const std::string& sentence) {
  if (log)
    log(level, kLogEnv, "coppice", 0, "Coppice: %s", sentence.c_str());
  else if (level == kWarn)
    std::fprintf(stderr, "Coppice: %s\n", sentence.c_str());
}

int init_v2(std::uint8_t, std::uint8_t, std::uint8_t, const char*, Logger log) {
  const char* given = std::getenv(kVariable);
  bool asked = given && *given;
  std::string path = asked ? given : kPlace;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || (!(text << file.rdbuf()) && file.peek() != std::ifstream::traits_type::eof())) {
    if (asked) say(log, kWarn, path + " cannot be read: no settings");
    return 0;
  }
  try {
    settings() = parse_settings(text.str(), path);
  } catch (const Refusal& refusal) {
    say(log, kWarn, std::string(refusal.what()) + ": the file is refused, no settings");
    return 0;
  }
  for (const auto& [name, value] : settings())
    if (name.rfind("COPPICE_", 0) == 0) ::setenv(name.c_str(), value.c_str(), 0);
  say(log, kInfo, path + ": " + std::to_string(settings().size()) + " settings, behind the environment of the job");
  return 0;
}

int init_v1(std::uint8_t major, std::uint8_t minor, std::uint8_t patch, const char* suffix) {
  return init_v2(major, minor, patch, suffix, nullptr);
}

int finalize() { return 0; }

const char* get(const char* name) {
  if (const char* own = std::getenv(name)) return own;
  auto found = settings().find(name);
  return found == settings().end() ? nullptr : found->second.c_str();
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const EnvV1 ncclEnvPlugin_v1;
__attribute__((visibility("default"))) extern const EnvV2 ncclEnvPlugin_v2;
const EnvV1 ncclEnvPlugin_v1 = {"Coppice", init_v1, finalize, get};
const EnvV2 ncclEnvPlugin_v2 = {"Coppice", init_v2, finalize, get};
}

}  // namespace coppice::nccl_env
