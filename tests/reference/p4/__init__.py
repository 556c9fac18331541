"""An interpreter of the subset of P4_16 that written programs use, and the commands that fill its tables."""
