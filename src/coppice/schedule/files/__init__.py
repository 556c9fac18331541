"""Plan files: JSON columns that can be verified without Coppice."""
