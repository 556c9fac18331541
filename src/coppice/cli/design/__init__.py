"""`coppice design`, a file for each subcommand."""
