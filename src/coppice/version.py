"""The version of this package, which files that it writes carry as their provenance."""

from __future__ import annotations

__version__ = "0.1.0"
