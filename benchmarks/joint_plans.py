"""Plans of all groups of a training job at once, beside the bound of all groups and plans made one by one.

    python benchmarks/joint_plans.py --write            # the table of benchmarks/joint_plans.md (a minute or two)
    python benchmarks/joint_plans.py --only mi250

The goals stand in the table: within 5% of the bound, and 10 processor seconds for 512 GPUs; ``MISS`` marks what does
not reach them. Every plan is verified, and every bound counted again from the network and what groups exchange.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import coppice
from coppice.iteration.costs.traffic import job_demands  # noqa: F401  (loaded before anything is timed)
from coppice.planners.together.joint import plan_apart
from coppice.text import percent_text, seconds_text
from joint_cases import JOBS, LARGE
from lab import machine, say

TABLE = Path(__file__).with_name("joint_plans.md")
MOST_GAP = 0.05
MOST_SECONDS = 10.0

HEAD = """# Groups at once: plans beside the bound

All groups of an iteration exchange at the same time. Regenerate with `python benchmarks/joint_plans.py --write`.
{machine}

"Least": the bound of all groups together. "Together": how much longer the busiest link is busy with the plans of
`coppice plan --job`; at most 5% is the goal. "Apart": the same of plans made for each group as if it had all links.
"Seconds": of the processor, from the loaded cluster to verified plans; at most 10 s for 512 GPUs are the goal.

| cluster | GPUs | groups | job | plans | least | together | apart | seconds | goals |
|---|---:|---|---|---:|---:|---:|---:|---:|---|
"""


def row(name: str, boxes: int, groups: str, job: str, batch: int) -> str:
    """The row of one job."""
    cluster = coppice.load(name, boxes=boxes) if boxes > 1 else coppice.load(name)
    begin = process_time()
    found = coppice.plan_groups(cluster, groups=groups, job=job, global_batch=batch)
    seconds = process_time() - begin
    apart = plan_apart(cluster, found.bound.demands)
    near, fast = found.gap <= MOST_GAP, seconds <= MOST_SECONDS
    cells = [
        cluster.name,
        str(cluster.num_ranks),
        groups,
        f"{job}, {batch} sequences",
        str(len(found.groups)),
        seconds_text(float(found.bound.seconds)),
        f"+{percent_text(found.gap)}" if found.gap else "0",
        f"+{percent_text(apart.seconds / found.bound.seconds - 1)}",
        f"{seconds:.2f}",
        "ok" if near and fast else f"MISS {'' if near else 'bound '}{'' if fast else 'seconds'}".strip(),
    ]
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="how the name of a cluster begins")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args(arguments)
    coppice.plan_groups("dgx-a100", groups="tp=4,dp=2")  # what is loaded at the first plan is not timed
    rows = []
    for case in (*JOBS, *LARGE):
        if options.only is None or case[0].startswith(options.only):
            say(" ".join(map(str, case)))
            rows.append(row(*case))
    page = HEAD.format(machine=f"{machine()}.") + "".join(f"{each}\n" for each in rows)
    if options.write and options.only is None:
        TABLE.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
