"""Compositions of policies on a job: simulate, compare, tune, and recommend."""
