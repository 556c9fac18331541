// The emulated box: its GPUs, and what NVLink joins them with.
//
// It is read from the file that COPPICE_EMULATED_GPU_BOX names (box.py writes one of a topology of Coppice), lines of
//
//   driver 13000
//   gpu <bus id> <compute capability, 90 for 9.0> <bytes of memory> <NUMA node> <multicast 0|1> <model>
//   link <GPU> <bus id of a GPU or of a switch> <gpu|switch>      one NVLink of the GPU
//
// Without a file: two GPUs that four NVLinks join.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coppice::emulated_gpu {

struct NvLink {
  std::string to;  // bus id
  bool is_switch = false;
};

struct Gpu {
  std::string bus_id;  // 0000:07:00.0
  int capability = 90;
  std::uint64_t bytes = 0;
  int numa = 0;
  bool multicast = false;
  std::string model;
  std::vector<NvLink> links;
  unsigned domain = 0, bus = 0, device = 0;
};

struct Box {
  int driver = 0;
  std::vector<Gpu> gpus;
};

const Box& box();
bool parse_box(const std::string& text, Box& box, std::string& error);
// As NVML and the runtime do: without regard to case, and with a domain of four or eight digits.
int gpu_at(const std::string& bus_id);
std::uint64_t identity(const Gpu& gpu);  // of its bus id and of the host

}  // namespace coppice::emulated_gpu
