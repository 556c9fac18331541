"""Doctor: would a library or runtime load a file and use it as meant, and if not, why, and what to do."""
