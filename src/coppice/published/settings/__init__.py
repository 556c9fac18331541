"""Settings of published gains: model, GPUs, network, the system and what it was compared with, as data."""
