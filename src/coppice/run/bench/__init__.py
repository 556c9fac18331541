"""Benchmarks of algorithms beside the library that is installed, on the processes that run now."""
