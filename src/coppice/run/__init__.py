"""Schedules that run: lowering to per-rank programs, engines that execute them, and communicators over both.

``lower`` makes the programs of ranks and ``check`` judges them; ``engine`` is the interface of all engines, with
``numpy_engine`` and ``interpreter`` as the reference; ``communicator`` has collectives over arrays.
"""
