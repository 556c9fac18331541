"""Capturing process: run a training script as one rank of a job whose GPUs are not there, and record a step.

Usage: ``python -m coppice.iteration.capture.worker REQUEST ANSWER``, where REQUEST is a
:class:`~coppice.iteration.capture.request.CaptureRequest` as JSON and ANSWER the file to write.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, method-assign"

from __future__ import annotations

import os
import random
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.capture.request import CapturedRank, CaptureRequest, CaptureResult


def answer(request: CaptureRequest) -> CaptureResult:
    """The step that was recorded, or the reason why there is none."""
    _set_environment(request)
    import torch

    from coppice.iteration.capture import answers, fake_gpu, surroundings, values
    from coppice.iteration.capture.groups import AbsentGroups, Mailbox
    from coppice.iteration.capture.recorder import GpuMemory, ScriptRecorder

    mode = fake_gpu.GpuMode()
    memory = GpuMemory(mode)
    recorder = ScriptRecorder(mode, request.rank, request.steps)
    read = values.StandIns(mode, _assumed(request), strict=request.strict)
    groups = AbsentGroups(Mailbox(Path(request.folder), request.rank))
    around = surroundings.Surroundings(mode, request.rank, request.ranks)
    answers.install(
        request.device,
        local_rank=request.rank % request.box,
        gpus=min(request.box, request.ranks),
        memory=lambda which: memory.most()[0] if which == "most" else memory.now(),
    )
    fake_gpu.install(mode, read.rows, read.number)
    values.install(read)
    groups.install()
    around.install()
    _watch_schedules(recorder)
    with mode, memory, recorder, values.SizesMode():
        failure = _run(request)
    if failure is not None:
        return failure
    operations = recorder.finish()
    if not any(each.flops for each in operations):
        return CaptureResult(
            error=f"expected a training step on the GPU in {request.script}, found none: it ended after "
            f"{len(operations)} operations there; move the model to `cuda`, which is there for it."
        )
    facts = recorder.facts.found
    facts.mesh = groups.meshes
    facts.mesh_groups = [(list(ranks), name) for ranks, name in groups.mesh_groups.items()]
    notes = [f"{where.text}: {what}" for where, what in read.notes.items()]
    if recorder.steps < request.steps:
        notes.append(f"the script ended after {recorder.steps} of {request.steps} steps")
    most, parts = memory.most()
    return CaptureResult(
        captured=CapturedRank(
            rank=request.rank,
            steps=recorder.steps,
            layers=recorder.layers,
            operations=operations,
            setup=recorder.setup,
            peak_bytes=most,
            peak_parts=parts,
            notes=[*notes, *around.notes, *groups.notes],
            facts=facts,
            torch=str(torch.__version__),
        )
    )


def _set_environment(request: CaptureRequest) -> None:
    """Environment, arguments and path as torchrun sets them."""
    nodes, local = -(-request.ranks // request.box), request.rank % request.box
    os.environ |= {
        "RANK": str(request.rank),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(min(request.box, request.ranks)),
        "GROUP_RANK": str(request.rank // request.box),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(request.rank),
        "ROLE_WORLD_SIZE": str(request.ranks),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    sys.argv = [request.script, *request.arguments]
    sys.path[0] = str(Path(request.script).resolve().parent)
    sys.dont_write_bytecode = True
    random.seed(0)


def _assumed(request: CaptureRequest) -> dict[tuple[str, int], Any]:
    found = {}
    for place, value in request.assume.items():
        file, _, line = place.rpartition(":")
        found[(file, int(line))] = value
    return found


def _watch_schedules(recorder: Any) -> None:
    """Note the schedules of PyTorch's pipelines."""
    try:
        from torch.distributed.pipelining import schedules
    except ImportError:
        return
    for base in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        plain = base.__init__

        def made(
            self: Any, stage: Any, n_microbatches: int, *args: Any, plain: Any = plain, **kwargs: Any
        ) -> None:
            plain(self, stage, n_microbatches, *args, **kwargs)
            stages = stage if isinstance(stage, list) else [stage]
            recorder.facts.schedule(type(self).__name__, stages[0].num_stages, n_microbatches)

        base.__init__ = made
    modes = schedules.InferenceMode
    plain_vote = schedules._PipelineSchedule._warmup_p2p  # noqa: SLF001

    def voted(self: Any, stages: Any, has_backward: bool, p2p_done: bool) -> None:  # noqa: FBT001
        plain_vote(self, stages, has_backward, p2p_done)
        for each in stages:  # the others are taken to vote as this rank does
            if hasattr(each, "_user_meta"):
                dynamic = modes.needs_dynamic(each._user_meta, has_backward)  # noqa: SLF001
                each._inference_mode = modes.DYNAMIC if dynamic else modes.STATIC  # noqa: SLF001

    schedules._PipelineSchedule._warmup_p2p = voted  # noqa: SLF001


def _run(request: CaptureRequest) -> CaptureResult | None:
    """Run the script to the end of its steps; the reason why it did not get there."""
    from coppice.iteration.capture.recorder import StepsAreOver

    try:
        runpy.run_path(request.script, run_name="__main__")
    except StepsAreOver:
        return None
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        return CaptureResult(
            error=f"expected {request.script} to run its steps, found that it exits with {error.code!r}: its output "
            "has the reason.",
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (whatever a script raises is told)
        return _crashed(error, request)
    return None


def _crashed(error: BaseException, request: CaptureRequest) -> CaptureResult:
    """One sentence, and the script's own traceback."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    from coppice.iteration.capture.values import Refusal

    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    refused = next((each for each in chain if isinstance(each, Refusal | InputError)), None)
    lines = _script_lines(error)
    where = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else request.script
    if refused is not None:
        return CaptureResult(error=str(refused))
    unknown = next(
        (
            each
            for each in chain
            if isinstance(each, DynamicOutputShapeException | DataDependentOutputException)
        ),
        None,
    )
    if unknown is not None and lines:
        return CaptureResult(
            error=f"expected a script that needs no values of GPU tensors, found {lines[-1].line!r} at {where}, whose "
            f"result depends on them ({unknown.func}): give it by the line, as `value` "
            f"{Path(lines[-1].filename).name}:{lines[-1].lineno}=VALUE, or leave it out."
        )
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return CaptureResult(
        error=f"expected {request.script} to run, found {type(error).__name__} at {where}: {words.rstrip('.')}.",
        traceback="".join(
            [
                "Traceback (most recent call last):\n",
                *traceback.format_list(lines),
                *traceback.format_exception_only(type(error), error),
            ]
        ),
    )


def _script_lines(error: BaseException) -> list[traceback.FrameSummary]:
    """Lines of a traceback without those of this program and of what runs the script."""
    from coppice.iteration.capture.values import outside

    found = traceback.extract_tb(error.__traceback__)
    return [each for each in found if outside(each.filename)]


def main() -> None:
    """Answer the request of the command line."""
    request = msgspec.json.decode(sys.argv[1], type=decodable(CaptureRequest))
    target = Path(sys.argv[2])
    try:
        found = answer(request)
    finally:
        (Path(request.folder) / f"ended-{request.rank}").touch()
    target.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
