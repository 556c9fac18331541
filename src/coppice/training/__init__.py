"""Training on top of the collectives: AutoLRS, and overlap policies in torch.

``autolrs`` finds learning-rate schedules while training; it works on plain numbers. Pieces for torch are in ``torch``,
which alone imports it.
"""

from __future__ import annotations
