"""Plans of SYNDICATE and Centauri carried out: collectives in pieces, ways and channels, in one order on all ranks."""
