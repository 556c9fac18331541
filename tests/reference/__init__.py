"""Slow, readable references of the native core: one idea a file, exact, nothing taken from the core."""
