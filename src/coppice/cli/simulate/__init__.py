"""`coppice simulate`, its jobs and what it prints."""
