"""The training step of a job: blocks of layers, exchanges between ranks, messages, as tasks in the order of a pipeline.

``block`` says what a step is, ``blocks`` makes one of a transformer, ``overlap`` says what may run beside computation,
``graph`` makes tasks of it, ``simulated`` runs them and says where the time goes.
"""
