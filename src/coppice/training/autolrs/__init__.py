"""AutoLRS without torch: forecasts, proposals, state machine, log and report, over plain numbers."""

from __future__ import annotations

from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.forecast import ExponentialFit, fit_exponential, fit_published
from coppice.training.autolrs.log import Action, Method, SearchDecision, SearchPhase, Settings, read_events
from coppice.training.autolrs.search import propose, regress

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
