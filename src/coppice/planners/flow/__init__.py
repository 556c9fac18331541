"""Flow planners: all-to-all, gather and scatter."""
