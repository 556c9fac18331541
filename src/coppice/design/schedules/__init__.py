"""TODO schedules."""
