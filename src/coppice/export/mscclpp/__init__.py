"""TODO mscclpp."""
