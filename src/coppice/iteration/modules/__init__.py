"""Modules of PyTorch as tasks: a training step traced on fake tensors, its operations, times, and simulation.

``tracing`` says what comes back of a process that builds a module and traces it (``worker``, ``torch_recorder``), since
a fake process group is state of a whole process; ``timed`` says what it means on a cluster.
"""
