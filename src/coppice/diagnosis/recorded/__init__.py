"""Diagnosis from what is there already: logs, records and dumps of a job, joined over its ranks."""
