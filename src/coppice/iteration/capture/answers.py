"""Answers of ``torch.cuda`` about a GPU that is not there.

Calls that change nothing about a step are answered for a named device; streams and events do nothing, as nothing runs.
Memory is that of the tracker.
"""

# Names of PyTorch are replaced here.
# mypy: disable-error-code="attr-defined, no-untyped-call, misc, assignment, arg-type, call-arg, redundant-expr"

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from coppice.iteration.capture.values import Refusal, place
from coppice.iteration.devices import DEVICES

_CAPABILITIES = {
    "V100": (7, 0),
    "A100": (8, 0),
    "A100-80G": (8, 0),
    "H100": (9, 0),
    "H100-96G": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
    "GB200": (10, 0),
    "GB300": (10, 3),
    "MI250X": (9, 0),
    "MI300X": (9, 4),
}
"""Compute capability of a device, as ``torch.cuda.get_device_capability`` has it."""
_NAMES = {
    "A100-80G": "A100-SXM4-80GB",
    "A100": "A100-SXM4-40GB",
    "H100": "H100 80GB HBM3",
    "V100": "V100-SXM2-32GB",
}


class Stream:
    """A stream on which nothing runs."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = device, priority
        self.stream_id = self.cuda_stream = self.device_index = 0

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""

    def record_event(self, event: Any = None) -> Any:
        """An event."""
        return event if event is not None else Event()

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is made of what it runs."""
        return False

    def synchronize(self) -> None:
        """Wait for nothing."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return


class Event:
    """An event that has happened; between two of them there is no time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.event_id = self.cuda_event = 0

    def record(self, stream: Any = None) -> None:
        """Record nothing."""

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Whether it has happened."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds until another event, a millisecond as loops divide by it."""
        return 1.0

    def synchronize(self) -> None:
        """Wait for nothing."""


class _Here:
    """Context that changes nothing: of a device, a stream or a memory pool."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.idx = self.prev_idx = 0

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return


class _Refused:
    """What needs a real GPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise Refusal(
            f"expected a script that needs no GPU, found a CUDA graph at {place().text}: leave it out here, as its "
            "operators are the same without."
        )


def install(device: str, *, local_rank: int, gpus: int, memory: Callable[[str], int]) -> None:
    """Answer calls of ``torch.cuda`` and ``torch.accelerator`` for a device.

    Args:
        device: Its name.
        local_rank: GPU that is the current one until the script sets another.
        gpus: GPUs of a box.
        memory: Bytes on the GPU: now, or the most.
    """
    sheet = DEVICES[device]
    major, minor = _CAPABILITIES[device]
    current = [local_rank]
    properties = SimpleNamespace(
        name=("AMD Instinct " if device.startswith("MI") else "NVIDIA ") + _NAMES.get(device, device),
        major=major,
        minor=minor,
        total_memory=int(sheet.memory_bytes),
        multi_processor_count=sheet.processors,
        gcnArchName="",
        warp_size=32,
        is_integrated=False,
        L2_cache_size=50 * 2**20,
        shared_memory_per_block_optin=232448,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        uuid="fake",
    )

    def set_device(wanted: Any) -> None:
        index = wanted if isinstance(wanted, int) else torch.device(wanted).index
        if index is not None and index >= 0:
            current[0] = index

    state = torch.zeros(16, dtype=torch.uint8)
    stream = Stream()
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_is_compiled": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: gpus,
        "current_device": lambda: current[0],
        "set_device": set_device,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_properties": lambda *_: properties,
        "can_device_access_peer": lambda *_: True,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": lambda *_, **__: major >= 8,
        "is_tf32_supported": lambda: major >= 8,
        "mem_get_info": lambda *_: (properties.total_memory - memory("now"), properties.total_memory),
        "memory_stats": lambda *_: _statistics(memory),
        "get_rng_state": lambda *_: state.clone(),
        "get_rng_state_all": lambda: [state.clone() for _ in range(gpus)],
        "initial_seed": lambda: 0,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "get_stream_from_external": lambda *_, **__: stream,
        "current_blas_handle": lambda: 0,
        "get_sync_debug_mode": lambda: 0,
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "stream": _Here,
        "StreamContext": _Here,
        "device": _Here,
        "device_of": _Here,
        "_DeviceGuard": _Here,
        "use_mem_pool": _Here,
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "CUDAGraph": _Refused,
        "graph": _Refused,
        "make_graphed_callables": _Refused,
    }
    answers |= dict.fromkeys(
        ("memory_allocated", "memory_reserved", "memory_cached"), lambda *_: memory("now")
    )
    answers |= dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda *_: memory("most"))
    silent = (
        *(
            "init",
            "_lazy_init",
            "synchronize",
            "empty_cache",
            "ipc_collect",
            "set_stream",
            "_sleep",
            "_lazy_call",
        ),
        *("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"),
        *("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats"),
        *("set_per_process_memory_fraction", "set_sync_debug_mode", "_set_allocator_settings"),
    )
    answers |= dict.fromkeys(silent, nothing)
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if hasattr(module, name):
                setattr(module, name, answer)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: 0)
    torch.cuda.nvtx.range = _Here
    torch.cuda.nccl.version = lambda: (2, 27, 3)
    torch.cuda.default_generators = tuple(torch.Generator() for _ in range(gpus))
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Byte", "Bool"):
        setattr(torch.cuda, f"{name}Tensor", _constructor(getattr(torch, f"{name}Tensor").dtype))
    _install_accelerator(current, gpus, answers)


def _install_accelerator(current: list[int], gpus: int, answers: dict[str, Any]) -> None:
    """What ``torch.accelerator`` and generic streams say."""
    found: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: gpus,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
        "current_device_index": lambda: current[0],
        "current_device_idx": lambda: current[0],
        "set_device_index": answers["set_device"],
        "set_device_idx": answers["set_device"],
        "current_stream": answers["current_stream"],
        "set_stream": answers["set_stream"],
        "synchronize": answers["synchronize"],
        "empty_cache": answers["empty_cache"],
        "memory_allocated": answers["memory_allocated"],
        "max_memory_allocated": answers["max_memory_allocated"],
        "memory_stats": answers["memory_stats"],
        "reset_peak_memory_stats": answers["reset_peak_memory_stats"],
    }
    for name, answer in found.items():
        setattr(torch.accelerator, name, answer)
    torch.Stream, torch.Event = Stream, Event
    torch._C._get_accelerator = lambda *_: torch.device("cuda")  # noqa: SLF001
    plain = torch.Generator

    class Generator(plain):  # type: ignore[valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return plain.__new__(cls, "cpu" if torch.device(device).type == "cuda" else device)

    torch.Generator = Generator


def _constructor(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Former constructors of tensors on a GPU, such as ``torch.cuda.FloatTensor``."""

    def made(*sizes: Any) -> torch.Tensor:
        if len(sizes) == 1 and not isinstance(sizes[0], int | torch.Size):
            return torch.tensor(sizes[0], dtype=dtype, device="cuda")
        return torch.empty(*sizes, dtype=dtype, device="cuda")

    return made


def _statistics(memory: Callable[[str], int]) -> dict[str, int]:
    """Statistics of memory as the caching allocator gives them, those that loops read."""
    found = {"num_alloc_retries": 0, "num_ooms": 0}
    for kind in ("active_bytes", "allocated_bytes", "reserved_bytes", "inactive_split_bytes"):
        found[f"{kind}.all.current"], found[f"{kind}.all.peak"] = memory("now"), memory("most")
    return found
