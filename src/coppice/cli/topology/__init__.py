"""`coppice topology` and what it prints."""
