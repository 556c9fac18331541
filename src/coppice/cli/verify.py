"""`coppice verify`: verify a plan, or a runtime's program file."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import Stages, print_fields, print_json, print_note
from coppice.cli.plan.sets import verify_set
from coppice.errors import InputError
from coppice.export.formats import MSCCL_RUNTIMES
from coppice.files import file_name
from coppice.options import argument, option
from coppice.options.shared import JsonOption
from coppice.text import bandwidth_text, percent_text, plural, short_size, time_text

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import VerificationJson
    from coppice.schedule.plan import Plan
    from coppice.schedule.steady import SteadyRates
    from coppice.schedule.verification.report import Report

PlanArgument = Annotated[str, argument("Plan file; - is standard input.", metavar="PLAN")]


SchedulesOption = Annotated[
    int,
    option(
        "Adversarial schedules under which a program of puts and signals is run as well, with data.",
        "--schedules",
        metavar="N",
        ge=0,
    ),
]


@with_options()
def verify(
    plan: PlanArgument,
    *,
    schedules: SchedulesOption = 0,
    target: Annotated[
        str | None,
        option(
            f"MSCCL XML: the one runtime that is to run it ({', '.join(MSCCL_RUNTIMES)}) [default: all of them].",
            metavar="NAME",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify by counting that a plan does what it claims, independently of its planner.

    Trees span the ranks, roots carry their shares, paths follow links of the topology, switches do not copy
    unless they can, every byte arrives (exactly once where it is added), and no link carries more than the
    claimed time allows. An MSCCL XML file is run symbolically instead: it must not deadlock with the connections
    that its protocol has, have no race, and bring about what its collective promises, in the kernels of every runtime
    that reads such files unless `--target` names one. So is an execution plan of
    MSCCL++, where every put must be signalled as well, and a program of puts and signals, which must be right in every
    order that stock NCCL allows; with `--schedules` it is also run, with data, in orders that try to break it. A file
    of `coppice bound --size` has a certificate for each least time, which is counted again. Of a set of plans, all are
    verified, and simulated again at the sizes that it names. Exit code 1 if anything fails.

    \b
    Examples:
      coppice verify plan.json
      coppice plan dgx-a100 --collective all_gather -o - | coppice verify - --json
      coppice verify plans/
      coppice verify algo.xml
      coppice verify plan.mscclpp.json
      coppice verify plan.psp.json --schedules 1000
      coppice bound dgx-a100 --collective all_gather --size 1M -o - | coppice verify -
      coppice export plan.json --to msccl-xml --target msccl | coppice verify -
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.export.msccl.document import is_xml
    from coppice.export.mscclpp.document import is_mscclpp
    from coppice.export.put_signal.document import is_put_signal
    from coppice.schedule.files.bounds_file import is_bounds
    from coppice.schedule.files.plan_file import decode_plan, plan_bytes
    from coppice.schedule.files.set_file import is_plan_set
    from coppice.schedule.verification.verify import verify_plan

    if is_plan_set(plan):
        if schedules or target is not None:
            raise InputError(
                "a set of plans has no program to run: leave out `schedules` and `target`, or verify an exported file."
            )
        verify_set(plan, as_json=as_json)
        return
    data, name = plan_bytes(plan), file_name(plan)
    if is_put_signal(data):
        _verify_put_signal(data, name=name, schedules=schedules, as_json=as_json)
        return
    if schedules:
        raise InputError(
            f"expected a program of puts and signals for `schedules={schedules}`, found another file in {name}."
        )
    if target is not None and not is_xml(data):
        raise InputError(
            f"`target` names a runtime that reads MSCCL XML, and {name} is no such file: leave it out."
        )
    if is_bounds(data):
        _verify_bounds(data, name=name, as_json=as_json)
        return
    if is_xml(data) or is_mscclpp(data):
        _verify_program(data, name=name, target=target, as_json=as_json)
        return
    with Stages() as stages:
        stages.begin("reading the plan")
        loaded = decode_plan(data, name=name)
        stages.begin("verifying the plan")
        report = verify_plan(loaded, sums=True)
    if as_json:
        print_json("verify", report_record(loaded, report))
    else:
        verdict = "verified" if report.ok else "FAILED"
        print_fields(
            f"{loaded.problem.collective} on {loaded.topology.name}: {verdict}", _fields(loaded, report)
        )
    report.require_ok()


def _verify_bounds(data: bytes, *, name: str, as_json: bool) -> None:
    """Check the certificate of every least time of a file."""
    from coppice.errors import CheckError
    from coppice.schedule.files.bounds_file import decode_bounds
    from coppice.schedule.verification.time_proof import check_time_bound

    with Stages() as stages:
        stages.begin("reading the bounds")
        bounds, model = decode_bounds(data, name=name)
        stages.begin("checking the certificates")
        failures = []
        for bound in bounds:
            try:
                check_time_bound(bound)
            except CheckError as error:
                failures.append(f"{short_size(bound.size_bytes)}: {error}")
    problem = bounds[0].problem
    least: dict[int, Fraction] = {}  # under the protocol that needs least at each size
    for bound in bounds:
        least[bound.size_bytes] = min(bound.time_us, least.get(bound.size_bytes, bound.time_us))
    if as_json:
        rows = [
            {"size_bytes": size, "least_seconds": float(time) / 1e6, "model_name": model}
            for size, time in least.items()
        ]
        print_json(
            "verify-bounds",
            {**problem.record(), "verified": not failures, "failures": failures, "proved_times": rows},
        )
    else:
        words = "each proves its time" if not failures else f"FAILED: {failures[0]}"
        fields = [
            ("certificates", f"{len(bounds)} of {plural(len(least), 'size')}: {words}"),
            ("model", model),
        ]
        fields += [(short_size(size), time_text(float(time))) for size, time in least.items()]
        print_fields(f"Least times of {problem.collective} on {problem.topology.name}", fields)
    if failures:
        raise CheckError(failures[0])


def _text(value: Fraction | None) -> str | None:
    return None if value is None else str(value)


def _steady(plan: Plan, report: Report) -> SteadyRates:
    """The rate in messages of unbounded size, of what is right."""
    from coppice.schedule.steady import SteadyRates

    if plan.forest is not None or not report.ok:  # links of trees are never idle
        return SteadyRates(plan=plan, inv_rate=plan.inv_rate if report.ok else None)
    from coppice.simulation.simulated import steady_rates

    return steady_rates(plan)


def report_record(plan: Plan, report: Report) -> VerificationJson:
    """Verification report as JSON values."""
    rate = plan.problem.shards / report.inv_rate if report.inv_rate else None
    return {
        "collective": plan.problem.collective.value,
        "topology": plan.topology.name,
        "topology_sha256": plan.topology.sha256,
        "ranks": plan.topology.num_ranks,
        "verified": report.ok,
        "failures": list(report.failures),
        "load_ns_per_byte": _text(report.inv_rate),
        "planned_inv_rate": _text(report.inv_rate),
        "load_algbw_gb_per_s": None if rate is None else float(rate),
        "planned_algbw_gb_per_s": None if rate is None else float(rate),
        "load_algbw_exact_gb_per_s": _text(rate),
        **_steady(plan, report).record(),
        "planned_algbw_exact": _text(rate),
        "claimed_ns_per_byte": _text(report.claimed),
        "claimed_inv_rate": _text(report.claimed),
        "max_link_load": _text(report.max_link_load),
        "redundant_share": str(report.redundant),
        "redundant": str(report.redundant),
        "optimum_ns_per_byte": None if plan.bound is None else str(plan.bound.inv_rate),
        "bound_inv_rate": None if plan.bound is None else str(plan.bound.inv_rate),
        "bound_proved": report.bound_proved,
        "proved_ns_per_byte": _text(report.proved_inv_rate),
        "proved_inv_rate": _text(report.proved_inv_rate),
        "trees_per_root_proved": report.whole_trees,
        "with_trees_ns_per_byte": _text(report.whole_trees_inv_rate),
        "with_trees_inv_rate": _text(report.whole_trees_inv_rate),
        "fewer_trees_ns_per_byte": _text(report.fewer_trees_inv_rate),
        "fewer_trees_inv_rate": _text(report.fewer_trees_inv_rate),
        "proof_in_words": None if plan.bound is None else report.proof_in_words,
        "optimal": report.optimal,
        "ordered": report.ordered,
        "deadlock_free": report.deadlock_free,
        "sums": None if report.sums is None else report.sums.record(),
        "checked": report.checked,
    }


def _fields(plan: Plan, report: Report) -> list[tuple[str, str]]:
    problem = plan.problem
    fields = [("failure", sentence) for sentence in report.failures]
    if report.checked:
        fields.append(("checked", ", ".join(f"{count} {name}" for name, count in report.checked.items())))
    if report.inv_rate:
        rate = problem.shards / report.inv_rate
        busbw = rate * problem.busbw_factor
        fields.append(("reaches", f"{bandwidth_text(rate, busbw)} by its busiest link"))
        steady = _steady(plan, report)
        if steady.steps_wait:
            fields.append(("steady state", steady.text))
    if report.max_link_load is not None and report.worst_link >= 0:
        name = plan.topology.link_name(report.worst_link)
        fields.append(("worst link", f"{name}, busy {percent_text(report.max_link_load)} of the plan's time"))
    if report.deadlock_free:
        fields.append(("deadlock", "none, even with room for a single message per connection"))
    if report.ordered:
        fields.append(("operands", "added up in the order of ranks"))
    if report.sums is not None:
        fields.append(("sums", report.sums.words))
    fields.append(("redundant bytes", percent_text(report.redundant) if report.redundant else "none"))
    if plan.bound is not None:
        fields.append(("bound", report.proof_in_words))
    return fields


def _verify_program(data: bytes, *, name: str, target: str | None, as_json: bool) -> None:
    """Verify the program in MSCCL XML, or in an execution plan of MSCCL++, and print what was found."""
    from coppice.export.msccl.document import is_xml, parse_document
    from coppice.export.msccl.reader import judge_document
    from coppice.export.mscclpp.document import parse_document as parse_json
    from coppice.export.mscclpp.reader import program_of as one_sided_program_of
    from coppice.program.dialects.puts.program import OneSidedProgram
    from coppice.program.dialects.puts.verify import OneSidedReport, verify_one_sided
    from coppice.program.dialects.thread_blocks.program import Program
    from coppice.program.dialects.thread_blocks.verify import ProgramReport

    program: Program | OneSidedProgram
    report: ProgramReport | OneSidedReport
    facts: dict[str, object] = {}
    sizes = ""
    with Stages() as stages:
        stages.begin("reading the file")
        if is_xml(data):
            document = parse_document(data, file=name)
            stages.begin("verifying the program")
            judged = judge_document(document, target=target)
            program, report, warnings = judged.program, judged.report, judged.warnings
            ways = {"in place": program.in_place, "out of place": program.out_of_place}
            run = " and ".join(way for way, meant in ways.items() if meant)
            run += f", connections of {plural(judged.report.depth, 'message')}"
            if program.max_bytes is not None:
                sizes = f"messages of up to {program.max_bytes} bytes"
            facts = {
                "out_of_place": program.out_of_place,
                "fifo_depth": judged.report.depth,
                "max_bytes": program.max_bytes,
            }
        else:
            reading = one_sided_program_of(parse_json(data, file=name))
            program = reading.program
            stages.begin("verifying the program")
            report = verify_one_sided(program)
            warnings = (*reading.warnings, *report.warnings)
            run = "in place" if program.in_place else "out of place"
    if as_json:
        print_json(
            "verify-program",
            {
                "collective": program.collective.value,
                "name": program.name,
                "ranks": program.num_ranks,
                "verified": report.ok,
                "failures": list(report.failures),
                "warnings": list(warnings),
                "in_place": program.in_place,
                **facts,
                "checked": report.checked,
            },
        )
        report.require_ok()
        return
    for warning in warnings:
        print_note(f"warning: {warning}")
    fields = [("failure", sentence) for sentence in report.failures]
    fields += [
        ("checked", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.checked.items())),
        ("run", run),
    ]
    if sizes:
        fields.append(("sizes", sizes))
    verdict = "verified" if report.ok else "FAILED"
    print_fields(
        f"{program.collective} of {plural(program.num_ranks, 'rank')} ({program.name}): {verdict}", fields
    )
    report.require_ok()


def _verify_put_signal(data: bytes, *, name: str, schedules: int, as_json: bool) -> None:
    """Verify a program of puts and signals, and print what was found."""
    from coppice.export.put_signal.document import parse_put_signal
    from coppice.program.dialects.put_signal.verify import verify_put_signal

    with Stages() as stages:
        stages.begin("reading the file")
        program = parse_put_signal(data, file=name).program
        stages.begin("verifying the program")
        report = verify_put_signal(program, schedules=schedules)
    messages = program.messages
    ways = {"in place": program.in_place, "out of place": program.out_of_place}
    if as_json:
        print_json(
            "verify-put-signal",
            {
                "collective": program.collective.value,
                "name": program.name,
                "ranks": program.num_ranks,
                "verified": report.ok,
                "failures": list(report.failures),
                "in_place": program.in_place,
                "out_of_place": program.out_of_place,
                "graph_safe": report.graph_safe,
                "chunks": program.num_chunks,
                "staging_chunks": int(program.staging.max(initial=0)),
                "messages_of_a_gpu": int(messages.max()),
                "communicator_count": program.num_communicators,
                "communicators": program.num_communicators,
                "checked": report.checked,
            },
        )
        report.require_ok()
        return
    fields = [("failure", sentence) for sentence in report.failures]
    fields += [
        ("checked", ", ".join(f"{count} {name}" for name, count in report.checked.items())),
        ("run", " and ".join(way for way, meant in ways.items() if meant)),
        ("messages", f"up to {int(messages.max())} of a GPU"),
        ("staging", f"{int(program.staging.max(initial=0))} of {plural(program.num_chunks, 'chunk')}"),
    ]
    if report.graph_safe is not None:
        fields.append(("captured", "as a graph as well" if report.graph_safe else "as a graph it deadlocks"))
    verdict = "verified" if report.ok else "FAILED"
    print_fields(
        f"{program.collective} of {plural(program.num_ranks, 'rank')} ({program.name}): {verdict}", fields
    )
    report.require_ok()
