"""The engine over torch.distributed."""
