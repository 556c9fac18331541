"""`coppice train advise`: recommend a policy for a job."""

from __future__ import annotations

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import Stages, print_json, print_lines
from coppice.cli.train.job_options import LAYOUT_OPTIONS, load_job
from coppice.iteration.job_options import JobOptions
from coppice.options.shared import JobsOption, JsonOption


@with_options(f"job jobs {LAYOUT_OPTIONS} collectives model rates settings ...")
def advise(options: JobOptions, *, jobs: JobsOption = None, as_json: JsonOption = False) -> None:
    """Recommend a policy for a job, or for a workload of layers (.json).

    Compares all policies as `train compare` does; says how much of the possible gain, from the baseline to what none
    of them beats, the simplest good one takes, how much is left, and what PyTorch, Megatron-LM or DeepSpeed switch on
    by a flag.

    \b
    Examples:
      coppice train advise workload.json
      coppice train advise gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=4,pp=2,dp=2 --global-batch 32 --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.composing.advice import advise as advice_of
    from coppice.iteration.composing.compared import compare_on_layers, compare_policies

    layers = options.layers()
    with Stages() as stages:
        stages.begin("simulating")
        if layers is not None:
            title, found = options.job, compare_on_layers(layers, processes=jobs)
        else:
            asked = load_job(options)
            title = f"{asked.name} on {asked.machines.name}"
            found = compare_policies(asked, processes=jobs)
    advice = advice_of(found)
    if as_json:
        print_json("train-advise", {"job": title, **advice.record(), "sentences": advice.sentences()})
        return
    print_lines([f"{title}:", *advice.sentences()])
