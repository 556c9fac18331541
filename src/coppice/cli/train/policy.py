"""`coppice train policy`: simulate an iteration under a policy, with the bound for all policies."""

from __future__ import annotations

from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_fields, print_json
from coppice.options import argument, option, parse_settings
from coppice.options.names import POLICIES
from coppice.options.shared import JsonOption
from coppice.text import plural


@with_options()
def policy(
    workload: Annotated[
        str,
        argument(
            "JSON file: forward and backward (seconds of each layer), bytes (of its gradients), bytes_per_second, "
            "message_seconds, workers; - is standard input.",
            metavar="WORKLOAD",
        ),
    ],
    *,
    name: Annotated[str, option(f"One of: {', '.join(POLICIES)}.", "--policy", metavar="NAME")] = "wfbp",
    settings: Annotated[
        list[str] | None,
        option("Option of the policy; may be repeated.", "--set", metavar="KEY=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate training iterations under a policy, and print the steady-state time.

    Layers are computed in turn, forward and then backward; their gradients cross one network, a message at a time. The
    lower bound holds for every policy of the same kind.

    \b
    Examples:
      coppice train policy workload.json --policy ddp --set bucket_bytes=4000000
      coppice train policy workload.json --policy breadth-first --set stages=4 --set chunks=2 --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.layers import read_workload
    from coppice.iteration.policies.catalogue import policy_named
    from coppice.iteration.predicted import predict

    found = predict(read_workload(workload), name, parse_settings(settings or (), option="--set"))
    if as_json:
        print_json("train-policy", found.record())
        return
    least = found.lower_bound_seconds
    more = f": the iteration takes {found.iteration_seconds / least - 1:.3%} more" if least else ""
    repeated = plural(found.period, "iteration") if found.period else "never within those simulated"
    fields = [
        ("iteration", f"{found.iteration_seconds:.6g} s"),
        ("lower bound", f"{least:.6g} s{more}"),
        ("computes", f"{found.compute_seconds:.6g} s"),
        ("repeats after", repeated),
    ]
    if found.staleness:
        late = plural(found.staleness, "iteration")
        fields.append(("staleness", f"gradients are {late} late: this is not the training of one device"))
    print_fields(f"{name}: {policy_named(name).about}", fields)
