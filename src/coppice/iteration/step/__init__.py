"""Training step of a job: blocks of layers, collectives and messages as tasks in a pipeline order.

``block`` says what a step is and ``plan`` what policies decide about it; ``lower`` makes tasks of both, with ``passes``
for what a pass is. ``blocks`` makes a step of a transformer and ``workloads`` of layers and stages; ``simulated`` runs
the tasks and says where the time goes.
"""
