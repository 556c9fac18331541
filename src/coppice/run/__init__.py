"""Schedules that run: lowering to per-rank programs, engines that execute them, and communicators over both.

    lower.py           schedule -> program of every rank (steps.py, homes.py, sides.py, scratch.py, needs.py)
    check.py           are programs right? (symbols.py)
    engine.py          the interface of all engines; numpy_engine.py, interpreter.py are the reference
    communicator.py    collectives over arrays: agreement.py, planned_programs.py, plan_cache.py, choice.py, groups.py
"""
