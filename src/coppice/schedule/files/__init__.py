"""Plan files: JSON columns that can be checked without Coppice."""
