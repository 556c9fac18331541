"""Synthesis methods of published systems (solvers, sketches, search), a module or folder each.

All give Schedules or Forests that are verified, simulated, compared and exported like any other, and are measured by
the exact bound. A method may use the bound to stop where nothing better is left; what it finds does not come from it.
"""
