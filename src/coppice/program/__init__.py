"""Per-rank programs: what every rank's thread blocks do, step by step; lowering to them, and their verifier."""
