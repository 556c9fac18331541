"""Every known collective algorithm, a small file each; :mod:`.catalogue` finds them by name."""
