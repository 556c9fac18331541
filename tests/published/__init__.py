"""What people posted in public threads, as inputs of commands, with the answer that is right.

A module holds the checks of one subject as `CHECKS`; `python tests/cases.py DIRECTORY` runs them on the inputs and
prints a table, `tests/test_cases.py` runs them as tests.
"""

from __future__ import annotations
