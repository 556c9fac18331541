"""Coppice: provably optimal collective communication for any GPU cluster."""

__version__ = "0.1.0"
