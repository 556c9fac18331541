"""PyTorch modules as tasks: trace a training step on fake tensors, time its operations, and simulate it.

``tracing`` says what comes back of a process that builds a module and traces it (``worker``, ``torch_recorder``), since
a fake process group is state of a whole process; ``timed`` says what it means on a cluster.
"""
