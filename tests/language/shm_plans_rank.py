"""One rank of processes that carry out all plans of a folder: `python shm_plans_rank.py FOLDER RANK RANKS`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coppice.collectives import Collective
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.shared_memory import ShmEngine, directory_exchange
from coppice.schedule.files.plan_file import read_plan
from support.shm_cases import Case

if __name__ == "__main__":
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    right = 0
    exchange = directory_exchange(folder / "exchange", rank, ranks, timeout_s=240)
    engine = ShmEngine.connect(rank, ranks, exchange)
    for number, path in enumerate(sorted(folder.glob("*.json"))):
        plan = read_plan(str(path))
        body = plan.body
        if plan.problem.demands is not None:  # every rank sends to the next
            program = lower_for_run(body, 12 * ranks, in_place=False)[rank]
            source = np.full(program.input_elements, rank, dtype=np.int32) + np.arange(program.input_elements)
            output = np.zeros(program.output_elements, dtype=np.int32)
            engine.run(
                program, source.astype(np.int32), output, dtype=DataType.INT32, op=ReduceOp.SUM, timeout_s=120
            )
            right += bool(
                (output == rank - 1 + np.arange(len(output))).all() and (len(output) > 0) == (rank > 0)
            )
            continue
        in_place = body.collective is not Collective.ALL_TO_ALL
        given = Case(body.collective, ranks, 103, DataType.INT32, ReduceOp.SUM, -1, in_place, number)
        program = lower_for_run(body, given.count, in_place=in_place)[rank]
        source, output, result = given.buffers(rank)
        engine.run(program, source, output, dtype=given.dtype, op=given.op, timeout_s=120)
        right += bool((output[result] == given.right(rank)).all())
    engine.close()
    print(f"{right} right")
