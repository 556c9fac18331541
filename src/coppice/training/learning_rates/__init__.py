"""Learning-rate schedules compared by small trainings: tasks, methods, and steps to one validation loss."""
