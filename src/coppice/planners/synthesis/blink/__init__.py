"""Blink (G. Wang et al., MLSys 2020): pack trees onto the links of the allocated GPUs."""
