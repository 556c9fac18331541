"""What to change today: the picks of the installed library, the best it could pick, and how to try it."""
