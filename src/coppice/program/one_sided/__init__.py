"""One-sided programs: ranks write into the memory of others and signal; lowering and their verifier."""
