"""`coppice tune`, a file for each subcommand."""
