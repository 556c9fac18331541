"""Engine for ranks of one host, over shared memory and the native core."""
