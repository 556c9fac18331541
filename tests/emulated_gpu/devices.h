// Devices, and which of them a thread uses; a context is a device.
#pragma once

#include "emulated_gpu/box.h"

namespace coppice::emulated_gpu {

bool is_device(int device);
int current_device();
void set_current_device(int device);

// An attribute of a device; runtime and driver number them alike. Nothing where it is unknown.
bool attribute_of(int device, int attribute, int& value);

}  // namespace coppice::emulated_gpu
