"""Write and read execution plans of MSCCL++."""
