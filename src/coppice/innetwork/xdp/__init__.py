"""SwitchML in the kernel: an XDP program that adds up frames where they come in, and what loads it."""
