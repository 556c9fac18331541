"""Torch backend: a process group with planned collectives."""
