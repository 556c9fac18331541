"""Doctor: check whether a library or runtime would load and use a file as intended, and if not, why."""

from __future__ import annotations

import sys

from coppice.arguments import CallableRoom
from coppice.doctor.diagnose import TARGETS, TUNING_TARGETS, diagnose, rules_for
from coppice.doctor.framework import Diagnosis, DoctorRule, Finding, Severity
from coppice.doctor.job_facts import JobFacts

__all__ = [
    "TARGETS",
    "TUNING_TARGETS",
    "Diagnosis",
    "DoctorRule",
    "Finding",
    "JobFacts",
    "Severity",
    "diagnose",
    "rules_for",
]

MAIN = "diagnose"
sys.modules[__name__].__class__ = CallableRoom
