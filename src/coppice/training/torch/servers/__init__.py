"""Parameter servers: processes that hold slices of parameters, update them, and send them to workers."""
