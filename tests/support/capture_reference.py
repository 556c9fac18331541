"""What training scripts do for real on gloo: FLOPs, collectives and memory of a step, counted by PyTorch's own modes.

This knows nothing of captures. Usage: ``python -m support.capture_reference JOBS ANSWERS``, where JOBS is a JSON
list of ``{"name", "script", "arguments", "ranks"}``, and ANSWERS the folder that gets ``NAME-RANK.json``. Ranks are
forked, so that PyTorch is imported once.
"""

import json
import os
import runpy
import socket
import sys
import time
import traceback
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Arguments whose bytes are those of a collective, by the name of the operator: the larger one of what goes in and out.
SIZED = {
    "broadcast_": "broadcast",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "reduce_": "reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}
"""Products of matrices: where their two factors stand."""


class Counting(TorchDispatchMode):
    """Two operations a multiply-add of products and attention, scores counted in full; bytes of collectives."""

    def __init__(self):
        super().__init__()
        self.rows = []
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(each.__name__ in ("DTensor", "AsyncCollectiveTensor") for each in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        space, name = func.namespace, func._schema.name.split("::")[1]
        if name in PRODUCTS:
            first, second = (args[each] for each in PRODUCTS[name])
            self.flops += 2 * first.numel() * second.shape[-1]
        elif name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
            backward = name.endswith("backward")
            query, key, value = args[backward : 3 + backward]
            samples, heads, tokens, width = query.shape
            scores = 2 * samples * heads * tokens * key.shape[2]
            # Scores and context; in a backward pass scores again, and a gradient of each of the three and of scores.
            self.flops += scores * (3 * width + 2 * value.shape[-1] if backward else width + value.shape[-1])
        if space in ("c10d", "_c10d_functional") and name in SIZED:
            sizes = [sum(each.nbytes for each in tensors(part)) for part in (*args, result)]
            self.rows.append([SIZED[name], max(sizes), len(group_of(args))])
        return result


def tensors(part):
    return [each for each in tree_leaves(part) if isinstance(each, torch.Tensor)]


def group_of(args):
    for each in args:
        if isinstance(each, str) and each not in ("sum", "avg", "max", "min"):
            return dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(each))
        if isinstance(each, torch.ScriptObject):
            try:
                return dist.get_process_group_ranks(dist.ProcessGroup.unbox(each))
            except RuntimeError:
                continue
    return []


class Memory(MemTracker):
    """Totals alone: snapshots of modules are not made for scripts that call them several times a step."""

    def _pre_fw_hook(self, module, inputs):
        try:
            super()._pre_fw_hook(module, inputs)
        except NotImplementedError:
            self.memory_tracking.clear()
            super()._pre_fw_hook(module, inputs)

    def _post_fw_hook(self, module, inputs, outputs):
        if module in self.memory_tracking:
            super()._post_fw_hook(module, inputs, outputs)

    def __init__(self):
        super().__init__()
        self._mod_tracker = Forward()


class Forward(ModTracker):
    """Modules in forward passes alone, as hooks of backward passes do not go with pipelines."""

    def _fw_pre_hook(self, module, inputs):
        name = self._get_mod_name(module)
        self._get_append_fn(weakref.ref(module), name, False)()
        self._user_pre_fw_hook(module, inputs)

    def _fw_post_hook(self, module, inputs, outputs):
        self._user_post_fw_hook(module, inputs, outputs)
        self._get_pop_fn(weakref.ref(module), self._get_mod_name(module), False)()


def run(job, rank, port, target):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job["ranks"]),
        "LOCAL_WORLD_SIZE": str(job["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    sys.argv = [job["script"], *job["arguments"]]
    sys.path.insert(0, str(Path(job["script"]).parent))
    counted, memory, marks = Counting(), Memory(), []
    register_optimizer_step_post_hook(lambda *_: marks.append((counted.flops, len(counted.rows))))
    error = ""
    try:
        with memory, counted:
            runpy.run_path(job["script"], run_name="__main__")
    except SystemExit as end:
        error = "" if end.code in (None, 0) else f"exit code {end.code}"
    except BaseException:  # noqa: BLE001 (whatever a script raises is shown)
        error = traceback.format_exc()
    peak = memory.get_tracker_snapshot("peak")
    found = {"error": error, "peak_bytes": peak[torch.device("cpu")]["Total"]}
    if len(marks) > 1:
        found |= {"flops": marks[1][0] - marks[0][0], "collectives": counted.rows[marks[0][1] : marks[1][1]]}
    (target / f"{job['name']}-{rank}.json").write_text(json.dumps(found))


def main():
    jobs, target = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    for job in jobs:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = []
        for rank in range(job["ranks"]):
            child = os.fork()
            if not child:
                try:
                    run(job, rank, port, target)
                finally:
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
