"""Schedules: forests and transfers, plan files, the verifier, exact link loads, tree shapes and a cost model."""
