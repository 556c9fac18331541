"""Adapting while a job runs: lasting changes of the times of calls, what is slow now, and a plan for that."""
