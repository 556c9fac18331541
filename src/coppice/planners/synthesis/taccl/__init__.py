"""TACCL (NSDI'23): algorithms guided by communication sketches, in three stages."""
