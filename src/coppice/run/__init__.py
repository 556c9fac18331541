"""Schedules that run: lowering to per-rank programs, engines that execute them, and communicators over both.

``programs.lower`` makes the programs of ranks and ``programs.check`` judges them; ``engines.engine`` is the interface
of all engines, with ``engines.numpy`` and ``engines.interpreter`` as the reference; ``communicator`` has collectives
over arrays.
"""
