"""Execution traces: dependent nodes of one or several ranks, replayed together.

``kinds`` tells what a file holds and reads it into the nodes of ``replay``, which turns them into tasks. Traces of
PyTorch's profiler are read by ``coppice.iteration.kineto``.
"""
