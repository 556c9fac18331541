"""Pipeline orders: the sequence of passes (stage, micro-batch, kind) of each device."""
