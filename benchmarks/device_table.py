"""Measure the device of a machine into a device file, where only PyTorch is installed: no build of Coppice is needed.

    python benchmarks/device_table.py -o h200.json            # the GPU, about 20 seconds
    python benchmarks/device_table.py --kind cpu -o cpu.json

`coppice train measure` does the same. `coppice train estimate ... --device h200.json` reads the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from coppice.iteration.measured.measuring import measure_device


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Measure the device of this machine into a device file.")
    parser.add_argument("-o", "--output", type=Path, default=Path("device.json"), help="file to write")
    parser.add_argument(
        "--kind", choices=["cuda", "cpu"], default=None, help="default: cuda where there is a GPU"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long it may take")
    asked = parser.parse_args()
    record = measure_device(
        asked.kind, seconds=asked.seconds, say=lambda line: print(line, file=sys.stderr, flush=True)
    )
    asked.output.write_text(json.dumps(record, indent=1) + "\n")
    best = max(each["tflops_per_s"] for each in record["matrices"])
    rate = max(each["bytes_per_second"] for each in record["copies"])
    print(
        f"wrote {asked.output}: {record['name']}, products {best:.4g} TFLOP/s, copies {rate / 1e9:.4g} GB/s"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
