"""One rank that makes every kind of call and trains small models; to load torch takes longer than either."""

from __future__ import annotations

import sys

import training_worker
from worker import tell, write_ring

write_ring()
if backends := sys.argv[4:]:
    tell({"trainings": training_worker.trainings(*backends)})
else:
    import api_worker

    tell({"calls": api_worker.calls(), "trainings": training_worker.trainings()})
