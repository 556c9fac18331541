#include "emulated_gpu/box.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "emulated_gpu/abi.h"

namespace coppice::emulated_gpu {
namespace {

bool address_of(const std::string& bus_id, unsigned& domain, unsigned& bus, unsigned& device) {
  return std::sscanf(bus_id.c_str(), "%x:%x:%x", &domain, &bus, &device) == 3;
}

Box small_box() {
  Box made;
  std::string error;
  parse_box(
      "gpu 0000:07:00.0 90 85899345920 0 1 Emulated\ngpu 0000:0f:00.0 90 85899345920 0 1 Emulated\n"
      "link 0 0000:0f:00.0 gpu\nlink 0 0000:0f:00.0 gpu\nlink 0 0000:0f:00.0 gpu\nlink 0 0000:0f:00.0 gpu\n"
      "link 1 0000:07:00.0 gpu\nlink 1 0000:07:00.0 gpu\nlink 1 0000:07:00.0 gpu\nlink 1 0000:07:00.0 gpu\n",
      made, error);
  return made;
}

Box read_box() {
  const char* path = std::getenv("COPPICE_EMULATED_GPU_BOX");
  if (!path || !*path) return small_box();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  Box made;
  std::string error = "cannot be read";
  if (!file || !parse_box(text.str(), made, error)) {
    std::fprintf(stderr, "emulated CUDA: expected a box in %s (COPPICE_EMULATED_GPU_BOX), found one that %s.\n", path,
                 error.c_str());
    made = {};
  }
  return made;
}

}  // namespace

bool parse_box(const std::string& text, Box& box, std::string& error) {
  box = {kVersion, {}};
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string kind;
    if (!(words >> kind) || kind[0] == '#') continue;
    bool good = false;
    if (kind == "driver") {
      good = static_cast<bool>(words >> box.driver);
    } else if (kind == "gpu") {
      Gpu gpu;
      good = static_cast<bool>(words >> gpu.bus_id >> gpu.capability >> gpu.bytes >> gpu.numa >> gpu.multicast >>
                               gpu.model) &&
             address_of(gpu.bus_id, gpu.domain, gpu.bus, gpu.device);
      box.gpus.push_back(gpu);
    } else if (kind == "link") {
      std::size_t at = 0;
      NvLink link;
      std::string what;
      good = static_cast<bool>(words >> at >> link.to >> what) && at < box.gpus.size() &&
             (what == "gpu" || what == "switch");
      link.is_switch = what == "switch";
      if (good) box.gpus[at].links.push_back(link);
    }
    if (!good) {
      error = "says '" + line + "' in line " + std::to_string(number);
      return false;
    }
  }
  return true;
}

const Box& box() {
  static const Box* one = new Box(read_box());
  return *one;
}

int gpu_at(const std::string& bus_id) {
  unsigned domain = 0, bus = 0, device = 0;
  if (!address_of(bus_id, domain, bus, device)) return -1;
  for (std::size_t i = 0; i < box().gpus.size(); ++i) {
    const Gpu& gpu = box().gpus[i];
    if (gpu.domain == domain && gpu.bus == bus && gpu.device == device) return static_cast<int>(i);
  }
  return -1;
}

std::uint64_t identity(const Gpu& gpu) {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return std::hash<std::string>{}(gpu.bus_id + "@" + name);
}

}  // namespace coppice::emulated_gpu
