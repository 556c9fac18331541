"""Training step of a job: blocks of layers, collectives and messages as tasks in a pipeline order.

``block`` says what a step is, ``blocks`` makes one of a transformer, ``overlap`` says what may run beside computation,
``graph`` makes tasks of it, ``simulated`` runs them and says where the time goes.
"""
