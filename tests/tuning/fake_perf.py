#!/usr/bin/env python3
"""Prints what a program of nccl-tests prints; times follow from the choice, and a counter adds noise that repeats."""

from __future__ import annotations

import os
import sys
from pathlib import Path

arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
first, last, factor = (int(arguments[key]) for key in ("-b", "-e", "-f"))
name = Path(sys.argv[0]).name
log = Path(os.environ["FAKE_LOG"])
table = os.environ.get("COPPICE_TUNER_TABLE") or os.environ.get("NCCL_TUNER_CONFIG_FILE")
algorithm, protocol = os.environ.get("NCCL_ALGO"), os.environ.get("NCCL_PROTO")
if table:
    algorithm, protocol = Path(table).read_text().splitlines()[-1].split(",")[3:5]
channels = os.environ.get("NCCL_MIN_CTAS", "-")
with log.open("a") as file:
    file.write(f"{name} {algorithm} {protocol} {channels} {os.environ.get('NCCL_TUNER_PLUGIN', '-')}\n")
count = len(log.read_text().splitlines())
if os.environ.get("FAKE_STOP") and count > int(os.environ["FAKE_STOP"]):
    sys.exit("killed")
if (algorithm or "").lower() == "collnetdirect":
    sys.exit("NCCL failure: invalid usage")
print("NCCL version 2.27.7+cuda12.4")
print(f"# Collective test starting: {name}\n# Using devices")
for rank in range(4):
    print(
        f"#  Rank  {rank} Group  0 Pid  47{rank} on  node{rank // 2} device  {rank % 2} [0000:1b:00] NVIDIA H100"
    )
size = first
while size <= last:
    time = 20 + size / 1000 + count % 7 / 100
    if (algorithm or "").lower() == "tree" and (protocol or "").lower() == "ll":
        time *= 0.5 if size < 10000 else 3
    elif algorithm:
        time *= 1.2
    wrong = int((algorithm or "").lower() == "nvls")
    print(
        f"{size:12d} {size // 4:12d}     float     sum      -1 {time:8.2f} 1.0 1.0 {wrong} {time * 2:8.2f} 1.0 1.0 0"
    )
    size *= factor
print("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0")
