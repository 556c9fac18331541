"""Rules about execution plans of MSCCL++."""
