"""Measure a device: matrix products, memory copies, attention.

Needs PyTorch and nothing else, so that it runs where only that is installed (benchmarks/device_table.py). Method: a
call is repeated until the time of its repetitions can be trusted, five times over, and the median is kept. Operands are
random, as products of zeros draw less power and run at higher clocks, and weights take turns so that no cache holds
them. Times on GPUs are those between two events of a stream; what the host needs to launch an operation is a row of its
own.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

_CUDA_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CUDA_WEIGHTS = (
    (1024, 1024),
    (4096, 1024),
    (1024, 4096),
    (2048, 2048),
    (4096, 4096),
    (14336, 4096),
    (4096, 14336),
    (8192, 8192),
    (28672, 8192),
    (8192, 28672),
    (12288, 1536),
    (1536, 12288),
    (12288, 12288),
)
_CPU_TOKENS = (16, 64, 256)
_CPU_WEIGHTS = ((256, 256), (1024, 256), (256, 1024), (1024, 1024))
_CUDA_COPIES = tuple(1 << exponent for exponent in range(18, 33, 2))
_CPU_COPIES = tuple(1 << exponent for exponent in range(16, 27, 2))
# sequences, tokens of each, heads, width of a head
_CUDA_ATTENTION = tuple(
    (sequences, seq, heads, width)
    for sequences, seq in (
        (1, 1024),
        (4, 1024),
        (1, 2048),
        (2, 2048),
        (8, 2048),
        (1, 4096),
        (1, 8192),
        (1, 16384),
    )
    for heads, width in ((8, 128), (16, 64), (32, 128))
)
_CPU_ATTENTION = ((1, 128, 4, 32), (1, 256, 4, 64))
_TURNS_BYTES = 256e6  # weights take turns until so many bytes are read
_MOST_TURNS = 64


def measure_device(
    kind: str | None = None, *, seconds: float = 20.0, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Measure a local device, and return the record of a device file.

    Args:
        kind: ``cuda`` or ``cpu``; None takes CUDA where there is a GPU.
        seconds: About how long it may take; 0 measures every row once.
        say: Gets a line for each part that is done.
    """
    import torch

    found = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    clock = _Clock(torch, found, seconds)
    record: dict[str, Any] = {
        "format": "coppice-device",
        "version": 1,
        "name": torch.cuda.get_device_name() if found == "cuda" else "cpu",
        "measured_with": f"torch {torch.__version__}",
        "memory_bytes": _memory_bytes(torch, found),
    }
    record["launch_seconds"] = clock.launch_seconds()
    say(f"launch: {1e6 * record['launch_seconds']:.3g} us")
    for name, rows in (("copies", _copies), ("matrices", _matrices), ("attention", _attention)):
        record[name] = list(rows(clock))
        say(f"{name}: {len(record[name])} rows, {clock.spent():.1f} s so far")
    return record


class _Clock:
    """Timer of calls on a device."""

    def __init__(self, torch: Any, kind: str, seconds: float) -> None:
        self.torch, self.cuda, self._seconds = torch, kind == "cuda", seconds
        self.device = torch.device(kind)
        self._runs = 5 if seconds else 1
        self._begun = time.perf_counter()

    def spent(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._begun

    def wait(self) -> None:
        """Synchronise with the device."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def each(self, calls: Sequence[Callable[[], object]]) -> float:
        """Median time per call; calls alternate, repeated until runs are long enough to time."""
        turns = itertools.cycle(calls)
        for _ in range(2):
            next(turns)()
        self.wait()
        once = max(self._run(turns, 1), 1e-7)
        # Rows divide the time that there is; a run of a GPU of less than 2 ms is not trusted.
        room = min(0.05, max(0.002, self._seconds / 1500))
        count = max(1, min(2000, math.ceil(room / once)))
        return statistics.median(self._run(turns, count) / count for _ in range(self._runs))

    def _run(self, turns: Iterator[Callable[[], object]], count: int) -> float:
        """Time of a number of calls."""
        if self.cuda:
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                next(turns)()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
        begun = time.perf_counter()
        for _ in range(count):
            next(turns)()
        return time.perf_counter() - begun

    def launch_seconds(self) -> float:
        """Launch overhead of an operation that computes next to nothing."""
        small = self.torch.zeros(16, device=self.device)
        for _ in range(20):
            small.add_(1.0)
        self.wait()
        runs = []
        for _ in range(self._runs):
            begun = time.perf_counter()
            for _ in range(200):
                small.add_(1.0)
            runs.append((time.perf_counter() - begun) / 200)
            self.wait()
        return statistics.median(runs)


def _memory_bytes(torch: Any, kind: str) -> int:
    """Memory of the device."""
    if kind == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _copies(clock: _Clock) -> Iterator[dict[str, Any]]:
    """Copies within memory: bytes read and written per second."""
    torch = clock.torch
    for size in _CUDA_COPIES if clock.cuda else _CPU_COPIES:
        turns = max(1, min(_MOST_TURNS, int(_TURNS_BYTES // (2 * size)))) if clock.cuda else 1
        pairs = [
            [torch.empty(size, dtype=torch.uint8, device=clock.device) for _ in range(2)]
            for _ in range(turns)
        ]
        took = clock.each([partial(into.copy_, out) for out, into in pairs])
        yield {"bytes": size, "seconds": took, "bytes_per_second": 2 * size / took}


def _matrices(clock: _Clock) -> Iterator[dict[str, Any]]:
    """(m x k) by (k x n) products, as a layer without bias computes them."""
    torch = clock.torch
    names = ("bfloat16",) if clock.cuda else ("float32",)
    tokens, weights = (_CUDA_TOKENS, _CUDA_WEIGHTS) if clock.cuda else (_CPU_TOKENS, _CPU_WEIGHTS)
    for name, (n, k) in itertools.product(names, weights):
        dtype = getattr(torch, name)
        size = n * k * dtype.itemsize
        turns = max(1, min(_MOST_TURNS, math.ceil(_TURNS_BYTES / size))) if clock.cuda else 1
        held = [torch.randn(n, k, device=clock.device, dtype=dtype) for _ in range(turns)]
        for m in tokens:
            rows = torch.randn(m, k, device=clock.device, dtype=dtype)
            out = torch.empty(m, n, device=clock.device, dtype=dtype)
            products = [partial(torch.matmul, rows, weight.t(), out=out) for weight in held]
            took = clock.each(products)
            yield {
                "m": m,
                "n": n,
                "k": k,
                "dtype": name,
                "seconds": took,
                "tflops_per_s": 2e-12 * m * n * k / took,
            }


def _attention(clock: _Clock) -> Iterator[dict[str, Any]]:
    """Causal attention: scores, softmax and context; FLOPs are counted as if no score were masked."""
    torch = clock.torch
    dtype = torch.bfloat16 if clock.cuda else torch.float32
    scaled = torch.nn.functional.scaled_dot_product_attention
    for sequences, seq, heads, width in _CUDA_ATTENTION if clock.cuda else _CPU_ATTENTION:
        shape = (sequences, heads, seq, width)
        query, key, value = (
            torch.randn(shape, device=clock.device, dtype=dtype, requires_grad=True) for _ in range(3)
        )
        out = scaled(query, key, value, is_causal=True)
        slope = torch.randn_like(out)
        with torch.no_grad():
            forward = clock.each([partial(scaled, query, key, value, is_causal=True)])
        inputs = (query, key, value)
        backward = clock.each([partial(torch.autograd.grad, out, inputs, slope, retain_graph=True)])
        counted = 4e-12 * sequences * heads * seq * seq * width
        yield {
            "sequences": sequences,
            "seq": seq,
            "heads": heads,
            "head_width": width,
            "causal": True,
            "forward_seconds": forward,
            "backward_seconds": backward,
            "forward_tflops_per_s": counted / forward,
            "backward_tflops_per_s": 2 * counted / backward,
        }
