// Errors: the last one of a thread, and calls that are not emulated.
#pragma once

#include "emulated_gpu/abi.h"

namespace coppice::emulated_gpu {

// The last error of this thread, which a call returns; success leaves the last one as it is.
int answer(int error);

// Print one line that names the call, once per call, and answer kNotSupported.
int not_supported(const char* call);

const char* error_name(int error);
const char* error_text(int error);

}  // namespace coppice::emulated_gpu
