"""Shared parts of the methods with mixed-integer programs: the program, routes between ranks, timed sends."""
