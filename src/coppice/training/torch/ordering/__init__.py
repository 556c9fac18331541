"""Prioritise by need: weight gradients, FSDP2 all-gathers, slices of parameter servers."""
