"""Doctor: would a library or runtime load a file and use it as meant, and if not, why, and what to do."""

from coppice.doctor.diagnose import TARGETS, TUNING_TARGETS, diagnose, rules_for
from coppice.doctor.framework import Diagnosis, Finding, Rule, Severity
from coppice.doctor.given import Given

__all__ = [
    "TARGETS",
    "TUNING_TARGETS",
    "Diagnosis",
    "Finding",
    "Given",
    "Rule",
    "Severity",
    "diagnose",
    "rules_for",
]
