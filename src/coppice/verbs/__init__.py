"""Functions of Python with the names and options of the commands, over the rooms that do the work."""
