"""SwitchML's switch as a P4_16 program for v1model, generated with its table entries."""
