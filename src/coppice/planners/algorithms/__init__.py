"""Every known collective algorithm, a file for each idea; :mod:`.catalogue` finds them by name."""
