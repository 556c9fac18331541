"""Modules of PyTorch as tasks: a training step traced on fake tensors, its operations, times, and simulation.

``tracing`` starts a process that builds a module and traces it (``worker``, ``torch_recorder``), since a fake process
group is state of a whole process; ``operations`` is what comes back, ``timed`` what it means on a cluster.
"""
