"""Captures of several scripts, in processes forked from one that has imported PyTorch.

Usage: ``python -m support.captures JOBS ANSWERS`` with the jobs of ``support.capture_reference``, all of whose
``captured`` ranks are captured at once; ANSWERS gets ``NAME-RANK.answer``.
"""

import json
import os
import sys
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed.checkpoint
import torch.distributed.pipelining
import torch.distributed.tensor

from coppice.iteration.capture import recorder, worker
from coppice.iteration.capture.request import CaptureRequest

assert torch.distributed.is_available()
assert recorder.StepsAreOver


def run(job, rank, folder, target):
    request = CaptureRequest(
        script=job["script"],
        arguments=job["arguments"],
        ranks=job["ranks"],
        rank=rank,
        box=8,
        steps=2,
        device="H100",
        strict=job.get("strict", False),
        assume=job.get("values", {}),
        folder=str(folder),
    )
    log = os.open(target / f"{job['name']}-{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path.insert(0, "")  # as of a process of its own
    sys.argv = ["worker", msgspec.json.encode(request).decode(), str(target / f"{job['name']}-{rank}.answer")]
    worker.main()


def main():
    jobs, target = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    for job in jobs:
        folder = target / f"mail-{job['name']}"
        folder.mkdir()
        children = []
        for rank in job["captured"]:
            child = os.fork()
            if not child:
                try:
                    run(job, rank, folder, target)
                finally:
                    sys.stdout.flush()
                    os._exit(0)
            children.append(child)
        until = time.monotonic() + 240
        while children and time.monotonic() < until:
            for child in [*children]:
                if os.waitpid(child, os.WNOHANG)[0]:
                    children.remove(child)
            time.sleep(0.02)
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
