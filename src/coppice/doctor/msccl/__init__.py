"""Rules about MSCCL XML."""
