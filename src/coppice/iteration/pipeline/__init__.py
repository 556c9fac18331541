"""Pipeline orders: which device runs which pass of which stage and micro-batch, in which order."""
