"""Overlap policies carried out: gradients summed beside the backward and the next forward pass of a torch model."""
