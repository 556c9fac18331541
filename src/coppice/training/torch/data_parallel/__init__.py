"""Execute overlap policies: all-reduce gradients concurrently with backward and the next forward pass."""
