"""A plan made to fit a runtime that reads MSCCL XML: number of trees, channels, sizes."""
