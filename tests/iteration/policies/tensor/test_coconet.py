"""Programs and their rewrites: meaning is kept, costs are simulated ones, the tuner finds the published variants."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.iteration.policies.tensor.coconet.costs import Machine, autotune, variants, volumes
from coppice.iteration.policies.tensor.coconet.program import (
    LOCAL,
    REPLICATED,
    OpKind,
    Tensor,
    TensorOp,
    TensorProgram,
    adam,
    lamb,
    momentum,
    pipeline_handoff,
    tensor_parallel_layer,
)
from coppice.iteration.tasks import lower_bound_seconds, run_tasks
from reference.coconet_values import assembled, run_program

MACHINE = Machine()
EXAMPLES = {
    "adam": adam(ranks=4, elements=24),
    "momentum": momentum(ranks=4, elements=24),
    "lamb": lamb(ranks=2, elements=10),
    "layer": tensor_parallel_layer(ranks=2, rows=4, inner=6, columns=8),
    "layer of three": tensor_parallel_layer(ranks=3, rows=6, inner=6, columns=4),
    "hand-off": pipeline_handoff(ranks=4, rows=8, columns=4),
}


def drawn_inputs(program: TensorProgram, seed: int) -> dict[str, object]:
    numbers = np.random.default_rng(seed)
    given: dict[str, object] = {}
    for name, op in program.ops.items():
        if op.tensor is not None:
            copies = [program.ranks] if op.tensor.layout == LOCAL else []
            given[name] = np.abs(numbers.normal(size=[*copies, *op.tensor.shape]))
    return given


def outputs(program: TensorProgram, given: dict[str, object]) -> dict[str, np.ndarray]:
    """What every output is as a whole; where it is replicated all ranks have the same."""
    found = {}
    for outside, held in run_program(program, given).items():
        tensor = program.tensors[program.outputs[outside]]
        if tensor.layout == REPLICATED:
            assert all(np.array_equal(each, held[0]) for each in held)
        found[outside] = assembled(tensor, held)
    return found


def check_meaning(program: TensorProgram, seed: int, phases: int, most: int = 200_000) -> int:
    given = drawn_inputs(program, seed)
    expected = outputs(program, given)
    exact = not any(op.kind is OpKind.NORM for op in program.ops.values())
    count = 0
    for rewrites, each in itertools.islice(variants(program, phases=phases), most):
        found = outputs(each, given)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if exact:
                np.testing.assert_array_equal(found[name], value, err_msg=str(rewrites))
            else:
                np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=str(rewrites))
        count += 1
    return count


@pytest.mark.parametrize("name", EXAMPLES)
def test_rewrites_keep_the_meaning(name: str) -> None:
    assert check_meaning(EXAMPLES[name], 1, phases=1 if name == "lamb" else 3) > 4


def test_the_meaning_is_that_of_the_formulas() -> None:
    """Adam, LAMB and a layer by hand."""
    program = EXAMPLES["lamb"]
    given = drawn_inputs(program, 5)
    g, p = given["g"].sum(axis=0), given["p"]
    m, v = 0.9 * given["m"] + (1 - 0.9) * g, 0.999 * given["v"] + (1 - 0.999) * g * g
    u = m / (np.sqrt(v) + 1e-6) + 0.01 * p
    found = outputs(program, given)
    np.testing.assert_allclose(found["p"], p - 1e-3 * np.linalg.norm(p) / np.linalg.norm(u) * u, rtol=1e-12)
    layer = EXAMPLES["layer"]
    given = drawn_inputs(layer, 6)
    out = outputs(layer, given)["out"]
    plain = given["x"] @ given["w"] + given["bias"]
    dropped = np.isclose(out, given["residual"])
    np.testing.assert_allclose(out, np.where(dropped, 0, plain / 0.9) + given["residual"])
    assert not dropped.all()


def test_dropout_keeps_its_share_whatever_the_slices() -> None:
    layer = tensor_parallel_layer(ranks=2, rows=64, inner=2, columns=64, keep=0.75)
    given = drawn_inputs(layer, 3)
    dropped = np.isclose(outputs(layer, given)["out"], given["residual"]).mean()
    assert 0.2 < dropped < 0.3


def drawn_program(draw: random.Random) -> TensorProgram:
    """Sums, and some elementwise work, norms, dropouts, states and sends behind them."""
    ranks = draw.choice([2, 3])
    shape = (draw.choice([ranks, 2 * ranks, 4]), draw.choice([ranks, 5]))
    ops = {
        "g": TensorOp(OpKind.INPUT, tensor=Tensor(shape, LOCAL)),
        "s": TensorOp(OpKind.INPUT, tensor=Tensor(shape), private=draw.random() < 0.7),
        "r": TensorOp(OpKind.INPUT, tensor=Tensor(shape)),
        "bias": TensorOp(OpKind.INPUT, tensor=Tensor(shape[1:])),
        "sum": TensorOp(OpKind.ALL_REDUCE, ("g",)),
    }
    wide, outs = ["sum"], {}
    for number in range(draw.randint(1, 4)):
        name, operand = f"t{number}", draw.choice(wide)
        match draw.choice(["add", "bias", "dropout", "update", "norm", "send"]):
            case "add":
                ops[name] = TensorOp(
                    OpKind.POINTWISE, (operand, draw.choice([*wide, "r"])), function=np.subtract
                )
            case "bias":
                ops[name] = TensorOp(OpKind.POINTWISE, (operand, "bias"), function=np.multiply)
            case "dropout":
                ops[name] = TensorOp(OpKind.DROPOUT, (operand,), seed=number, keep=0.5)
            case "update" if not any(op.kind is OpKind.UPDATE for op in ops.values()):
                ops[name] = TensorOp(OpKind.UPDATE, ("s", operand), function=np.add)
                outs["s"] = name
            case "norm":
                ops[f"{name}.norm"] = TensorOp(OpKind.NORM, (operand,))
                ops[name] = TensorOp(
                    OpKind.POINTWISE, (draw.choice(wide), f"{name}.norm"), function=np.multiply
                )
            case _:
                ops[name] = TensorOp(OpKind.SEND, (operand,))
        wide.append(name)
    return TensorProgram(ranks, ops, {"out": wide[-1], **outs}).pruned()


def check_random_programs(count: int) -> None:
    draw = random.Random(16)
    for seed in range(count):
        check_meaning(drawn_program(draw), seed, phases=1, most=12)


def test_rewrites_keep_the_meaning_of_random_programs() -> None:
    check_random_programs(100)


@pytest.mark.slow
def test_rewrites_keep_the_meaning_of_many_random_programs() -> None:
    check_random_programs(5000)


@pytest.mark.slow
def test_every_variant_of_lamb() -> None:
    assert check_meaning(lamb(ranks=2, elements=6), 2, phases=3) > 10_000


@pytest.mark.parametrize("name", ["adam", "layer", "hand-off"])
def test_costs_are_what_simulation_says(name: str) -> None:
    free = Machine(link_rate=math.inf, hop=0.0, between=0.0, between_rate=math.inf)
    for number, (_, each) in enumerate(variants(EXAMPLES[name])):
        if number % 7 and name == "adam":
            continue
        graph = MACHINE.graph(each)
        seconds = run_tasks(graph).seconds
        assert seconds == pytest.approx(MACHINE.seconds(each), abs=2.0**-34 * len(graph))
        assert seconds >= lower_bound_seconds(graph) - 1e-9
        if not each.overlaps:
            kernels = [
                kernel for kernel in each.in_order() or [] if each.ops[kernel[0]].kind is not OpKind.SLICE
            ]
            computed = sum(free.computation(each, kernel) + free.launch for kernel in kernels)
            assert free.seconds(each) == pytest.approx(computed)


def test_volumes() -> None:
    """A sum and a send are 2 (n - 1) / n S + S; scatter, send of slices and gather 2 (n - 1) / n S + S / n."""
    program = pipeline_handoff(ranks=4, rows=8, columns=16)
    size = 8 * 16 * 2
    assert volumes(program).inside == 2 * 3 / 4 * size
    assert volumes(program).between == size
    found = {rewrites: volumes(each) for rewrites, each in variants(program)}
    assert all(each.inside == 2 * 3 / 4 * size for each in found.values())
    assert min(each.between for each in found.values()) == size / 4
    assert {each.between for each in found.values()} == {size, size / 4}


def test_state_and_work_of_an_optimizer_are_shared_out() -> None:
    program = adam(ranks=4, elements=64)
    best = autotune(program, MACHINE).program
    for name in ("m", "v"):
        assert best.tensors[name].held(4) == 16 == program.tensors[name].held(4) // 4
        assert best.tensors[best.outputs[name]].layout == 0
    assert best.tensors[best.outputs["p"]].layout == REPLICATED
    work = [
        sum(each.tensors[name].held(4) for name, op in each.ops.items() if op.kind is OpKind.UPDATE)
        for each in (program, best)
    ]
    assert work[0] == 4 * work[1]


@pytest.mark.parametrize(
    ("program", "kernels", "overlapped"),
    [
        (adam(ranks=4, elements=2**20), {OpKind.REDUCE_SCATTER, OpKind.UPDATE, OpKind.ALL_GATHER}, 0),
        (
            tensor_parallel_layer(ranks=4, rows=512, inner=1024, columns=1024),
            {OpKind.REDUCE_SCATTER, OpKind.POINTWISE, OpKind.DROPOUT, OpKind.ALL_GATHER},
            1,
        ),
        (pipeline_handoff(ranks=4, rows=64, columns=1024), set(), 2),
    ],
    ids=["adam", "layer", "hand-off"],
)
def test_the_tuner_finds_the_published_variants(
    program: TensorProgram, kernels: set[OpKind], overlapped: int
) -> None:
    """All of the optimizer, and what follows the product, inside a collective; the hand-off of slices."""
    found = autotune(program, MACHINE)
    assert {frozenset(found.program.ops[name].kind for name in each) for each in found.program.kernels} == (
        {frozenset(kernels)} if kernels else set()
    )
    assert len(found.program.overlaps) == overlapped
    assert found.seconds < MACHINE.seconds(program)
    if overlapped:  # the space of Adam takes a second
        assert found.seconds == min(MACHINE.seconds(each) for _, each in variants(program))
        assert found == autotune(program, MACHINE)


def test_the_space_is_closed() -> None:
    """Fusing first allows nothing else: from every variant rewrites of operations lead to no new operations."""
    for name in ("layer", "hand-off"):
        known = {each.key()[:2] for _, each in variants(EXAMPLES[name], phases=1)}
        for _, each in variants(EXAMPLES[name]):
            again = TensorProgram(each.ranks, each.ops, each.outputs)
            assert {other.key()[:2] for _, other in variants(again, phases=1)} <= known


def test_refusals() -> None:
    source = {"x": TensorOp(OpKind.INPUT, tensor=Tensor((3, 4)))}
    for op in (
        TensorOp(OpKind.ALL_REDUCE, ("x",)),
        TensorOp(OpKind.SLICE, ("x",), along=0),
        TensorOp(OpKind.MATMUL, ("x", "x")),
        TensorOp(OpKind.ALL_GATHER, ("x",)),
        TensorOp(OpKind.NORM, ()),
    ):
        with pytest.raises(InputError, match="on 2 ranks"):
            TensorProgram(2, {**source, "y": op}, {"out": "y"})
    with pytest.raises(InputError, match="none called z"):
        TensorProgram(2, {"y": TensorOp(OpKind.NORM, ("z",))}, {})
    with pytest.raises(InputError, match="outputs"):
        TensorProgram(2, source, {"out": "y"})
    with pytest.raises(InputError, match="3 variants"):
        autotune(EXAMPLES["layer"], MACHINE, most=3)
    with pytest.raises(InputError, match="above 0"):
        Machine(flops=0)
    ops = {
        **source,
        **{
            name: TensorOp(OpKind.POINTWISE, (before,), function=np.negative)
            for name, before in ("ax", "ba", "cb")
        },
    }
    circle = TensorProgram(2, ops, {"out": "c"}, kernels=frozenset({frozenset("ac")}))
    with pytest.raises(InputError, match="wait for each other"):
        run_program(circle, {"x": np.ones((3, 4))})
