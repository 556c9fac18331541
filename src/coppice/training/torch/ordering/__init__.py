"""What is needed first goes first: gradients of weights, gathers of FSDP2, slices of parameter servers."""
