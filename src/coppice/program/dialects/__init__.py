"""Kinds of programs: thread blocks with FIFOs, puts, puts and signals, and ranks; each lowers, unrolls and verifies."""
