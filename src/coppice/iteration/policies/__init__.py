"""Scheduling policies of communication and computation: start conditions, order, partitioning.

``policy`` is what each answers, ``catalogue`` has all by name, ``step_plans`` asks them about the step of a job.
"""
