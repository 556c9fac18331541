"""Topologies: the data model, presets, readers, composition and operations."""
