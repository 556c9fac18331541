"""Rules files for Open MPI from a set of plans: the algorithm of each range of sizes, where Open MPI has it."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.export.formats import Exported, OmpiRulesOptions
from coppice.export.open_mpi.rules_file import form_of, version_of
from coppice.export.open_mpi.writer import SUFFIXES, USE, OmpiRule, known_shape, merged, rules_file
from coppice.fitting.open_mpi import choice_of_plan
from coppice.schedule.files.set_file import PlanRange, PlanSet
from coppice.selection.tables import FUNCTIONS
from coppice.version import __version__


def export_ompi_rules_of_set(plans: PlanSet, options: OmpiRulesOptions) -> Exported:
    """Export the ranges of a set as rules; a range whose plan Open MPI does not have is left to its own choice."""
    problem, topology = plans.problem, plans.topology
    collective = problem.collective
    plain = OmpiRulesOptions(form=options.form, version=options.version)
    if options != plain:
        raise InputError(
            "a set of plans has its own collective, sizes and model: leave out the options of rules but `form` and "
            "`version`."
        )
    if collective not in FUNCTIONS:
        raise InputError(
            f"expected a set of plans of {', '.join(FUNCTIONS)} for rules of Open MPI, found {collective}."
        )
    reader = version_of(options.version, options.form)
    rules, notes = [], []
    for each in plans.ranges:
        choice = choice_of_plan(each.plan, _size_of(each), reader)
        rules.append(
            OmpiRule(
                first_bytes=each.first_bytes,
                id=choice.id,
                fanout=choice.fanout,
                segment_bytes=choice.segment_bytes,
            )
        )
        lacking = f"Open MPI has no {each.plan.planner or 'such plan'} as it is planned here: its own choice"
        notes.append(f"{each.text}: {choice.name or lacking}")
    if not any(rule.id for rule in rules):
        raise InputError(
            f"expected a plan that Open MPI has as an algorithm of {collective}, found none of "
            f"{len(plans.plans)} in the set: plan with `algorithm`, or run the set under MPI."
        )
    words = ".".join(map(str, reader))
    return Exported(
        text=rules_file(
            {collective: {topology.num_ranks: merged(rules)}},
            version=reader,
            comments=[
                f"coppice {__version__}, plans on {topology.name} {topology.sha256[:16]}, for Open MPI {words}",
                f"model {plans.model_name}",
            ],
        ),
        notes=(
            *notes,
            f"for Open MPI {words}: other versions number and read otherwise, `version=` names another one",
            USE,
        ),
        suffix=SUFFIXES[form_of(reader)],
        read_as="ompi-rules",
        known={"version": words, "shapes": known_shape(topology)},
    )


def _size_of(each: PlanRange) -> int:
    """The size by which segments are counted: the largest that the plan was made for."""
    return each.sizes[-1].size_bytes if each.sizes else each.last_bytes or each.first_bytes
