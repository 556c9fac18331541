"""SwitchML as a P4_16 program, and an interpreter that runs such programs on frames."""
