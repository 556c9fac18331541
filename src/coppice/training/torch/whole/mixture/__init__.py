"""Mixture of experts: prioritised all-to-all, expert packing, replication, and planned exchanges."""
