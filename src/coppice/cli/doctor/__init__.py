"""`coppice doctor`, a file for each kind of target."""
