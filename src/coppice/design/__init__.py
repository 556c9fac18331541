"""Which network to build: direct-connect graphs, their expansions, and the schedules that follow from them."""
