"""Policies on a job: compositions of them, compared, tuned, and which are worth their trouble."""
