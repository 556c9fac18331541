"""SwitchML's switch in the Linux kernel: an XDP program that aggregates frames as they come in, and its loader."""
