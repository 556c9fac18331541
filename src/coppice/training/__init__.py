"""Training on top of the collectives: what the time that they save is spent on.

``autolrs`` finds learning-rate schedules while training; it works on plain numbers. Pieces for torch are in ``torch``,
which alone imports it.
"""

from __future__ import annotations
