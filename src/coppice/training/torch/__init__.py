"""Training with torch: ``AutoLRS``, and ``schedule`` for policies of overlap. Only this package imports torch."""

from __future__ import annotations

from importlib.util import find_spec

from coppice.errors import MissingExtraError

PACKAGE = "torch"
if find_spec(PACKAGE) is None:
    raise MissingExtraError.of(PACKAGE, extra="autolrs")

from coppice.training.torch.autolrs import AutoLRS  # noqa: E402 (a missing torch is named first)
from coppice.training.torch.estimation import runtime_estimation  # noqa: E402
from coppice.training.torch.lightning import lightning_callback  # noqa: E402
from coppice.training.torch.overlap.schedule import schedule  # noqa: E402

__all__ = ["AutoLRS", "lightning_callback", "runtime_estimation", "schedule"]
