// Copies and fills: what they may leave open, and how their pieces are moved.
#pragma once

#include <vector>

#include "emulated_gpu/memory.h"
#include "emulated_gpu/streams.h"

namespace coppice::emulated_gpu {

struct Piece {
  Place to, from;
  std::size_t bytes = 0;
};

// A task that moves these pieces, in no order that anyone may rely on.
Task copy_task(std::vector<Piece> pieces, int device);

// One copy as its caller sees it; with `asynchronous` it returns as early as CUDA allows.
int copy(const std::vector<Piece>& rows, CopyKind kind, Stream& stream, bool asynchronous);

}  // namespace coppice::emulated_gpu
