"""Process groups whose other ranks are not there.

Collectives of tensors go to PyTorch's fake backend, which does nothing. Objects cannot be made up: what one rank sends
another comes from that rank, which is run as well (:class:`Mailbox`); where all gather from all, the objects of the
others are taken to be those of this rank.
"""

# Names of PyTorch are replaced here.
# mypy: disable-error-code="attr-defined, no-untyped-call, misc, assignment, arg-type"

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as data_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from coppice.iteration.capture.values import Refusal, refuse_assumed

_PATIENCE = 600.0
"""Seconds for which a rank waits for what another tells it."""


class Mailbox:
    """Objects that ranks send each other, as files of a folder.

    A rank that another one waits for is named by a file ``wanted-N``, and started by the parent of the processes.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._counts: Counter[str] = Counter()

    def post(self, channel: str, value: Any) -> None:
        """Send an object to the readers of a channel."""
        path = self._next(channel)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps(value))
        unfinished.rename(path)

    def fetch(self, channel: str, owner: int, what: str) -> Any:
        """Object that a rank sent.

        Raises:
            Refusal: If that rank ended without sending it.
        """
        path = self._next(channel)
        (self.folder / f"wanted-{owner}").touch()
        until = time.monotonic() + _PATIENCE
        while not path.is_file():
            if (self.folder / f"ended-{owner}").is_file() and not path.is_file():
                raise Refusal(
                    f"expected {what} from rank {owner}, found that it ended before: capture that one to see "
                    "why (`rank={owner}`)."
                )
            if time.monotonic() > until:
                raise Refusal(
                    f"expected {what} from rank {owner} within {_PATIENCE:.0f} s, found none: capture that "
                    f"one to see what it does (`rank={owner}`)."
                )
            time.sleep(0.01)
        return pickle.loads(path.read_bytes())

    def _next(self, channel: str) -> Path:
        self._counts[channel] += 1
        return self.folder / f"{channel}-{self._counts[channel]}.pickle"


class AbsentGroups:
    """Process groups of a script, whose collectives do nothing."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.notes: dict[str, None] = {}
        self.meshes: dict[str, int] = {}  # Degrees by the names of device meshes
        self.mesh_groups: dict[tuple[int, ...], str] = {}  # Their names, by the ranks of this rank's groups
        self._told: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._results: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._default = "nccl"

    def install(self) -> None:
        """Replace what needs other ranks."""
        self._install_groups()
        self._install_objects()
        self._install_futures()
        self._install_data_parallel()
        self._install_meshes()

    def _install_groups(self) -> None:
        plain_init, plain_new = dist.init_process_group, dist.new_group
        told = self._told

        def init_process_group(backend: Any = None, *_: Any, **kwargs: Any) -> None:
            wanted = str(backend) if backend else "nccl"
            self._default = wanted.rsplit("cuda:", 1)[-1].split(",")[0]
            rank, world = kwargs.get("rank", -1), kwargs.get("world_size", -1)
            plain_init(
                "fake",
                rank=int(os.environ["RANK"]) if rank in (-1, None) else rank,
                world_size=int(os.environ["WORLD_SIZE"]) if world in (-1, None) else world,
                store=FakeStore(),
            )

        def new_group(
            ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **kwargs: Any
        ) -> Any:
            del timeout
            made = plain_new(ranks, backend="fake", group_desc=kwargs.get("group_desc"))
            if backend is not None and isinstance(made, dist.ProcessGroup):
                told[made] = str(backend).rsplit("cuda:", 1)[-1].split(",")[0]
            return made

        def get_backend(group: Any = None) -> str:
            group = group or distributed_c10d._get_default_group()  # noqa: SLF001
            return told.get(group, self._default)

        both = {"init_process_group": init_process_group, "new_group": new_group, "get_backend": get_backend}
        both |= {"is_nccl_available": lambda: True, "barrier": lambda *_, **__: None}
        both |= {"monitored_barrier": lambda *_, **__: None}
        for name, function in both.items():
            setattr(dist, name, function)
            setattr(distributed_c10d, name, function)
        dist.TCPStore = dist.FileStore = lambda *_, **__: dist.HashStore()
        plain_split = dist.all_to_all_single

        def all_to_all_single(*args: Any, **kwargs: Any) -> Any:
            refuse_assumed((*args[2:4], *kwargs.values()), all_to_all_single)
            return plain_split(*args, **kwargs)

        dist.all_to_all_single = distributed_c10d.all_to_all_single = all_to_all_single

    def _install_objects(self) -> None:
        box = self.mailbox

        def rank_of(group: Any, rank: int | None, group_rank: int | None) -> int:
            if group_rank is not None:
                return int(dist.get_global_rank(group or distributed_c10d._get_default_group(), group_rank))  # noqa: SLF001
            return rank or 0

        def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
            self._alike(group)
            object_list[:] = [obj] * len(object_list)

        def gather_object(
            obj: Any, object_gather_list: Any = None, *_: Any, group: Any = None, **__: Any
        ) -> None:
            if object_gather_list is not None:
                self._alike(group)
                object_gather_list[:] = [obj] * len(object_gather_list)

        def broadcast_object_list(
            object_list: list[Any],
            src: int | None = None,
            group: Any = None,
            device: Any = None,
            group_src: Any = None,
        ) -> None:
            del device
            source = rank_of(group, src, group_src)
            channel = f"broadcast-{source}-{_name(group)}"
            if source == box.rank:
                box.post(channel, object_list)
            else:
                object_list[:] = box.fetch(channel, source, "an object that is broadcast")

        def scatter_object_list(
            output: list[Any],
            inputs: Any = None,
            src: int | None = None,
            group: Any = None,
            group_src: Any = None,
        ) -> None:
            source = rank_of(group, src, group_src)
            channel = f"scatter-{source}-{_name(group)}"
            if source == box.rank:
                box.post(channel, inputs)
            else:
                inputs = box.fetch(channel, source, "objects that are scattered")
            output[0] = inputs[dist.get_rank(group)]

        def send_object_list(
            object_list: list[Any],
            dst: int | None = None,
            group: Any = None,
            *_: Any,
            group_dst: Any = None,
            **__: Any,
        ) -> None:
            box.post(f"send-{box.rank}-{rank_of(group, dst, group_dst)}", object_list)

        def recv_object_list(
            object_list: list[Any],
            src: int | None = None,
            group: Any = None,
            *_: Any,
            group_src: Any = None,
            **__: Any,
        ) -> int:
            source = rank_of(group, src, group_src)
            object_list[:] = box.fetch(f"send-{source}-{box.rank}", source, "an object")
            return source

        for function in (
            *(all_gather_object, gather_object, broadcast_object_list),
            *(scatter_object_list, send_object_list, recv_object_list),
        ):
            setattr(dist, function.__name__, function)
            setattr(distributed_c10d, function.__name__, function)

    def _alike(self, group: Any) -> None:
        if dist.get_world_size(group) > 1:
            self.notes["objects that all ranks gather are taken to be those of this rank"] = None

    def _install_futures(self) -> None:
        """Futures of collectives hold the tensors, as hooks of DDP read them."""
        results = self._results

        def keeping(plain: Any) -> Any:
            def method(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
                work = plain(group, tensors, *args, **kwargs)
                if work is not None:
                    results[work] = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
                return work

            return method

        for name in ("allreduce", "allgather", "reduce_scatter", "_allgather_base", "_reduce_scatter_base"):
            setattr(dist.ProcessGroup, name, keeping(getattr(dist.ProcessGroup, name)))
        plain_future = dist.Work.get_future

        def get_future(work: Any) -> Any:
            if work not in results:
                return plain_future(work)
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(results[work])
            return future

        dist.Work.get_future = get_future

    def _install_data_parallel(self) -> None:
        """DDP's own hook reads a future in C++, which the fake backend does not fill."""
        data_parallel._verify_param_shape_across_processes = lambda *_, **__: True  # noqa: SLF001
        plain = data_parallel.DistributedDataParallel
        plain_init, plain_register = plain.__init__, plain.register_comm_hook

        def summed(group: Any, bucket: Any) -> Any:
            tensor = bucket.buffer().div_(dist.get_world_size(group))
            dist.all_reduce(tensor, group=group)
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(tensor)
            return future

        def initialize(module: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(module, *args, **kwargs)
            module.hook_of_script = None

            def hook(group: Any, bucket: Any) -> Any:
                found = module.hook_of_script
                return summed(group, bucket) if found is None else found[1](found[0], bucket)

            hook.__annotations__.clear()  # which C++ checks, and knows no text
            plain_register(module, module.process_group, hook)

        def register_comm_hook(module: Any, state: Any, hook: Any) -> None:
            module.hook_of_script = (state, hook)  # which ours calls, as C++ takes no second one

        plain.__init__ = initialize
        plain.register_comm_hook = register_comm_hook

    def _install_meshes(self) -> None:
        """Names of device meshes, which say what a group is for."""
        plain = dist.device_mesh.DeviceMesh.__init__

        def made(mesh: Any, *args: Any, **kwargs: Any) -> None:
            plain(mesh, *args, **kwargs)
            self.meet(mesh)

        dist.device_mesh.DeviceMesh.__init__ = made

    def meet(self, mesh: Any) -> None:
        """Note the names and degrees of a mesh."""
        for place, name in enumerate(mesh.mesh_dim_names or ()):
            self.meshes.setdefault(name, mesh.size(place))
            if mesh.get_coordinate() is not None:
                try:
                    ranks = tuple(dist.get_process_group_ranks(mesh.get_group(place)))
                except (RuntimeError, KeyError, ValueError, AssertionError):  # a mesh without groups
                    continue
                self.mesh_groups.setdefault(ranks, name)


def _name(group: Any) -> str:
    ranks = dist.get_process_group_ranks(group or distributed_c10d._get_default_group())  # noqa: SLF001
    return "-".join(map(str, (ranks[0], ranks[-1], len(ranks))))
