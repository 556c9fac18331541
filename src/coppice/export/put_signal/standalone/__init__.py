"""The two halves of an exported script, which knows nothing of Coppice."""
