"""Execute plans of SYNDICATE and Centauri: collectives in chunks, phases and channels, in one order on all ranks."""
