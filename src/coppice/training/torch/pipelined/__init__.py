"""``pipeline(stages, ...)``: execute a simulated pipeline order with its gradient all-reduces on real ranks."""
