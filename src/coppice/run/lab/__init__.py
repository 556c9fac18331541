"""Emulate a topology on this machine: network namespaces joined by rate-limited links (Linux, root)."""
