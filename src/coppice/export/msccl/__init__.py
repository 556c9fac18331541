"""Write and read MSCCL XML."""
