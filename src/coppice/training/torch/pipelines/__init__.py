"""``pipeline(stages, ...)``: a simulated order of a pipeline, and its sums of gradients, carried out by real ranks."""
