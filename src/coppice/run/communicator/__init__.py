"""Communicators: collectives over arrays, as a program calls them on every rank."""
