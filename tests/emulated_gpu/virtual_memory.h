// Physical memory by handle, and reserved addresses that it is mapped to.
#pragma once

#include <memory>

#include "emulated_gpu/memory.h"

namespace coppice::emulated_gpu {

inline constexpr std::size_t kGranularity = std::size_t{2} << 20;

MemoryHandle new_handle(std::shared_ptr<Physical> physical);
std::shared_ptr<Physical> physical_of(MemoryHandle handle);

}  // namespace coppice::emulated_gpu
