"""AutoLRS without torch: forecasts, proposals, state machine, log and report, over plain numbers."""

from __future__ import annotations

from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.forecast import ExponentialFit, fit_exponential, fit_published
from coppice.training.autolrs.log import Method, Settings, read_events
from coppice.training.autolrs.search import propose, regress
from coppice.training.autolrs.state import Action, SearchDecision, SearchPhase

__all__ = [
    "Action",
    "Controller",
    "ExponentialFit",
    "Method",
    "SearchDecision",
    "SearchPhase",
    "Settings",
    "fit_exponential",
    "fit_published",
    "propose",
    "read_events",
    "regress",
]
