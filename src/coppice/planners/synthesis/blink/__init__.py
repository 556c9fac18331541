"""Blink (G. Wang et al., MLSys 2020): trees packed onto the links of whatever GPUs a job got."""
