"""`coppice export`, a file for each family of formats."""
