"""Algorithms whose blocks travel straight to where they are needed, or through the root."""
