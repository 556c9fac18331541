"""TACCL: algorithms guided by communication sketches, in three stages (NSDI'23)."""
