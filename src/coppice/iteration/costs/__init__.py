"""What the collectives of a training job cost: calibrated rings, what NCCL picks, any algorithm, or our optimum."""
