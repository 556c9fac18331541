"""Costs of a training job's collectives: calibrated rings, NCCL's pick, any algorithm, or the optimum."""
