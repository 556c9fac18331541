"""Several groups at once: the least time in which a network carries what all of them exchange, with its proof."""
