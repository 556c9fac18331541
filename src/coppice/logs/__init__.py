"""Logs, tables of benchmarks and dumps of libraries, read into typed records."""
