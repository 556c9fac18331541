"""A rank of the lab of `diagnosis_lab.py`: ``PROGRAM FOLDER CASES``; measures the probes each time a case is set up."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from coppice.diagnosis.design import design_probes
from coppice.diagnosis.results import with_rates
from coppice.run.engines.launched import engine_name, open_engine
from coppice.run.probe.flows import measure_design
from coppice.topology.load import load

POLL_S = 0.02
SECONDS = 0.4
"""Time of a round: several turns of a slow process."""


def main() -> None:
    """Measure once for every case, when its file appears."""
    folder, cases = Path(sys.argv[1]), int(sys.argv[2])
    engine = open_engine(engine_name(None), timeout_s=300.0)
    (folder / f"rank{engine.rank}.pid").write_text(str(os.getpid()))
    design = design_probes(load(Path(os.environ["COPPICE_TOPOLOGY"]))) if engine.rank == 0 else None
    record = None if design is None else design.record()
    try:
        for case in range(cases):
            while not (folder / f"case{case}.begin").exists():
                time.sleep(POLL_S)
            begin = time.monotonic()
            rates = measure_design(engine, design, seconds=SECONDS)
            if record is not None:
                found = folder / f"case{case}.part"
                found.write_text(json.dumps(with_rates(record, rates)))
                found.rename(folder / f"case{case}.json")
                print(json.dumps({"case": case, "seconds": time.monotonic() - begin}), flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
