"""Engine over torch.distributed."""
