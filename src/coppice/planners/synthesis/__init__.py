"""Schedules found by solvers, sketches and search, as published systems find them; each method is a module or folder.

All give Schedules or Forests that are verified, simulated, compared and exported like any other, and are measured by
the exact bound. A method may use the bound to stop where nothing better is left; what it finds does not come from it.
"""
