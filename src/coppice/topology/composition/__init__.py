"""Composition: hosts, fabrics and cables made into one topology."""
