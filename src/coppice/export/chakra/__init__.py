"""Write Chakra execution traces for ASTRA-sim and other simulators."""
