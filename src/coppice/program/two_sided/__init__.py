"""Two-sided programs: thread blocks that send and receive over FIFOs; lowering to them, and their verifier."""
