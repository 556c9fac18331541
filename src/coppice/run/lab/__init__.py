"""A topology as a network of this machine: namespaces joined by rate-limited links (Linux, root)."""
