"""Parameter servers: processes that hold, update and send slices of parameters."""
