"""`coppice verify`, a file for each kind of input."""
