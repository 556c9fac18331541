"""Execution traces: dependent nodes of one or several ranks, replayed together.

``nodes`` is what all kinds of traces are read into, ``kinds`` tells what a file holds and reads it, ``replay`` turns
nodes into tasks. Traces of PyTorch's profiler are read by ``coppice.iteration.kineto``.
"""
