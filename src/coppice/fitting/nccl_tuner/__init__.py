"""Times of NCCL algorithms, and the rules of a tuner table that follow."""
