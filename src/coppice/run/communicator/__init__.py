"""Communicators: collectives over arrays, called on every rank."""
