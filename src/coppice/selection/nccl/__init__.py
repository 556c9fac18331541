"""Which algorithm NCCL picks, and why: its view of a machine, the channels that it searches, and its cost model."""
