"""Execution traces: nodes with what they wait for, of one rank or of several, replayed together.

``nodes`` is what all kinds of traces are read into, ``chakra`` and ``pytorch`` read them, ``replay`` turns them into
tasks; ``kinds`` tells what a file holds. Traces of PyTorch's profiler are read by ``coppice.iteration.kineto``.
"""
