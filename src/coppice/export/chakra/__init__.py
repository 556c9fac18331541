"""TODO chakra."""
