"""Read logs, benchmark tables and dumps of libraries into typed records."""
