"""`coppice train measure`: measure this machine's device for estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_fields, print_json, print_note
from coppice.errors import MissingExtraError
from coppice.options import option
from coppice.options.shared import JsonOption, TimeLimitOption


@with_options()
def measure(
    *,
    output: Annotated[Path, option("Device file to write.", "-o", "--output", metavar="FILE")] = Path(
        "device.json"
    ),
    kind: Annotated[
        str | None,
        option("cuda or cpu [default: cuda where there is a GPU].", metavar="KIND"),
    ] = None,
    seconds: TimeLimitOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Measure matrix products, copies of memory and attention with PyTorch, and write them as a device file.

    Give the file to `--device`: estimates then take its rates, and what lies between, instead of fitted constants.

    \b
    Example:
      coppice train measure -o device.json
    """  # noqa: D301 (\b is for the help formatter)
    import json

    from coppice.errors import InputError
    from coppice.files import write_atomically
    from coppice.iteration.measured.measuring import measure_device

    if kind not in (None, "cuda", "cpu"):
        raise InputError(f"expected --kind cuda or cpu, found {kind!r}.")
    try:
        record = measure_device(kind, seconds=seconds or 20.0, say=print_note)
    except ImportError:
        package = "torch"
        raise MissingExtraError.of(package, extra=package) from None
    write_atomically(output, (json.dumps(record, indent=1) + "\n").encode())
    best = max(each["tflops_per_s"] for each in record["matrices"])
    rate = max(each["bytes_per_second"] for each in record["copies"])
    if as_json:
        print_json(
            "train-measure",
            {"name": record["name"], "tflops_per_s": best, "bytes_per_second": rate, "output": str(output)},
        )
        return
    fields = [
        ("products", f"{best:.4g} TFLOP/s at most, {len(record['matrices'])} sizes"),
        ("copies", f"{rate / 1e9:.4g} GB/s at most"),
        ("launch", f"{1e6 * record['launch_seconds']:.3g} us"),
        ("wrote", str(output)),
    ]
    print_fields(record["name"], fields)
