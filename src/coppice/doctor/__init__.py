"""Doctor: would a library or runtime load a file and use it as meant, and if not, why, and what to do."""

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
