"""ASTRA-sim's text workloads: the published files, the loops of the strategies, bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep_ns3.workloads import (
    AstraFile,
    Collective,
    Compute,
    Group,
    Inner,
    Kind,
    ProgramOp,
    Workload,
    WorkloadError,
    load_astra,
    parse_astra,
    program,
    topological_order,
)
from ringstep_ns3.workloads.astra import MAX_FIGURE, PUBLISHED, Layer, Phase, Strategy

DATA = Path(__file__).parent / "data"


def columns(name: str) -> list[list[str]]:
    resource = files("ringstep_ns3.workloads") / "data" / PUBLISHED[name]
    return [line.split() for line in resource.read_text().splitlines()[2:] if line.strip()]


@pytest.mark.parametrize(
    ("name", "strategy", "layers", "gradient_bytes"),
    [
        ("resnet50", Strategy.DATA, 54, 102_011_648),
        ("transformer", Strategy.HYBRID_TRANSFORMER, 57, 2_434_351_104),
        ("dlrm", Strategy.HYBRID_DLRM, 8, 3_191_808),
        ("micro", Strategy.MICRO, 1, 1_048_576),
    ],
)
def test_published_files_are_read_whole(
    name: str, strategy: Strategy, layers: int, gradient_bytes: int
) -> None:
    found = load_astra(name)
    assert (found.strategy, len(found.layers)) == (strategy, layers)
    assert sum(layer.weight_gradient.bytes for layer in found.layers) == gradient_bytes


@pytest.mark.parametrize("name", ["resnet50", "transformer", "dlrm"])
def test_operations_carry_the_bytes_and_times_of_the_file(name: str) -> None:
    rows = columns(name)
    made = load_astra(name).workload(name)
    assert made.total_bytes() == sum(int(row[at]) for row in rows for at in (4, 7, 10))
    compute = sum(
        op.ns
        for op in made.operations
        if isinstance(op, Compute) and isinstance(op.ns, int) and not op.label.endswith("update")
    )
    # The loops of data-parallel training and DLRM do not ask for the first input gradient.
    unused = int(rows[0][5]) if name != "transformer" else 0
    assert compute == sum(int(row[at]) for row in rows for at in (2, 5, 8)) - unused


@pytest.mark.parametrize("name", PUBLISHED)
def test_rendering_and_reading_give_the_same_file(name: str) -> None:
    found = load_astra(name)
    assert parse_astra(found.render(), name) == found


@pytest.mark.parametrize("cycle_ns", [0, 0.5, 1, 1000])
def test_the_length_of_a_cycle_is_the_readers_choice(cycle_ns: float) -> None:
    made = parse_astra((DATA / "resnet_head.txt").read_text(), "x").workload("x", cycle_ns=cycle_ns)
    times = [op.ns for op in made.operations if isinstance(op, Compute)]
    assert times[:3] == [round(ns * cycle_ns) for ns in (13003, 3456, 3456)]


def test_a_negative_cycle_is_refused() -> None:
    with pytest.raises(WorkloadError, match="cycle_ns = -1 must be a number from 0 up"):
        load_astra("micro").workload("m", cycle_ns=-1)


def outline(made: Workload) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(op.label, op.after, op.after_previous) for op in made.operations]


def test_data_parallel_gradients_travel_while_the_backward_pass_goes_on() -> None:
    made = parse_astra((DATA / "resnet_head.txt").read_text(), "x").workload("x")
    labels = [op.label for op in made.operations]
    assert labels == [
        "conv1 forward",
        "layer_64_1_conv4 forward",
        "layer_64_1_conv1 forward",
        "layer_64_1_conv1 weight gradient",
        "layer_64_1_conv1 weight gradient all_reduce",
        "layer_64_1_conv1 weight gradient update",
        "layer_64_1_conv1 input gradient",
        "layer_64_1_conv4 weight gradient",
        "layer_64_1_conv4 weight gradient all_reduce",
        "layer_64_1_conv4 weight gradient update",
        "layer_64_1_conv4 input gradient",
        "conv1 weight gradient",
        "conv1 weight gradient all_reduce",
        "conv1 weight gradient update",
    ]
    after = [op.after for op in made.operations]
    assert after == [
        (), (0,), (1,), (2,), (3,), (4,), (3,), (6,), (7,), (8,), (7,), (10,), (11,), (12,),
    ]  # fmt: skip
    # The next forward pass of a layer needs its new weights; the first one the whole backward pass.
    assert [op.after_previous for op in made.operations[:3]] == [(11, 13), (9,), (5,)]


HYBRID = """{strategy}
2
a -1 10 ALLGATHER 100 20 ALLREDUCE 200 30 ALLREDUCE 300 0
b -1 11 ALLGATHER 101 21 REDUCESCATTER 201 31 ALLREDUCE 301 0
"""


@pytest.mark.parametrize(
    ("strategy", "inner"),
    [("HYBRID_DATA_MODEL", Inner.MODEL), ("HYBRID_MODEL_DATA", Inner.DATA)],
)
def test_hybrid_strategies_wait_for_activations_and_not_for_gradients(
    strategy: str, inner: Inner
) -> None:
    made = parse_astra(HYBRID.format(strategy=strategy), "x").workload("x", model_parallel=2)
    assert made.inner is inner
    assert outline(made) == [
        ("a forward", (), (9, 10)),
        ("a forward all_gather", (0,), ()),
        ("b forward", (0, 1), (7,)),
        ("b forward all_gather", (2,), ()),
        ("b input gradient", (2, 3), ()),
        ("b input gradient reduce_scatter", (4,), ()),
        ("b weight gradient", (4,), ()),
        ("b weight gradient all_reduce", (6,), ()),
        ("a input gradient", (5, 6), ()),
        ("a weight gradient", (8,), ()),
        ("a weight gradient all_reduce", (9,), ()),
    ]
    groups = [op.group for op in made.operations if isinstance(op, Collective)]
    assert groups == [Group.MODEL, Group.MODEL, Group.MODEL, Group.DATA, Group.DATA]
    gather = made.operations[1]
    assert isinstance(gather, Collective)
    assert gather.share  # what one rank brings in, as in ASTRA-sim's ring
    assert {op.bytes for op in program(made, 8) if op.kind == "all_gather"} == {200, 202}


def test_the_transformer_waits_for_every_activation() -> None:
    text = HYBRID.format(strategy="HYBRID_TRANSFORMER model_parallel_NPU_group: 4")
    made = parse_astra(text, "x").workload("x")
    assert made.model_parallel == 4
    labels = [label for label, _, _ in outline(made)]
    assert labels[4:8] == [
        "b input gradient",
        "b input gradient reduce_scatter",
        "b weight gradient",
        "b weight gradient all_reduce",
    ]
    assert made.operations[6].after == (4, 5)
    assert "a input gradient all_reduce" in labels


def test_checkpoints_run_the_forward_pass_again() -> None:
    row = "l{} -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 0\n"
    text = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoints: 2 0 2 "
        "checkpoint_initiates: 2 3 1\n4\n" + "".join(row.format(number) for number in range(4))
    )
    found = parse_astra(text, "x")
    assert (found.checkpoints, found.recompute_from) == ((0, 2), (3, 1))
    assert parse_astra(found.render(), "x") == found
    labels = [op.label for op in found.workload("x").operations if isinstance(op, Compute)]
    assert labels == [
        *(f"l{number} forward" for number in range(4)),
        "l2 forward again", "l3 input gradient", "l3 weight gradient",
        "l2 input gradient", "l2 weight gradient",
        "l0 forward again", "l1 input gradient", "l1 weight gradient",
        "l0 input gradient", "l0 weight gradient",
    ]  # fmt: skip


def test_model_parallel_files_keep_their_gradients() -> None:
    text = "MODEL\n1\na -1 1 ALLGATHER 8 1 ALLREDUCE 8 1 NONE 0 3\n"
    made = parse_astra(text, "x").workload("x")
    assert [op.group for op in made.operations if isinstance(op, Collective)] == [Group.ALL]


def test_inference_is_a_forward_pass() -> None:
    text = "DISTRIBUTED_INFERENCE\n1\na -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 0\n"
    made = parse_astra(text, "x").workload("x")
    assert [op.label for op in made.operations] == ["a forward", "a forward all_reduce"]


def test_dlrm_looks_up_embeddings_beside_the_bottom_layers() -> None:
    made = load_astra("dlrm").workload("dlrm")
    by_label = {op.label: index for index, op in enumerate(made.operations)}
    updated = by_label["Embedding forward update"]
    assert made.operations[by_label["MLP_Bottom_0 forward"]].after == (
        by_label["Embedding forward"],
    )
    top = made.operations[by_label["MLP_Top_0 forward"]]
    assert top.after == tuple(sorted((updated, by_label["MLP_Bottom_3 forward"])))
    back = made.operations[by_label["Embedding input gradient all_to_all"]]
    assert back.after == (by_label["MLP_Top_0 input gradient"],)
    kinds = [op.kind for op in made.operations if isinstance(op, Collective)]
    assert kinds.count(Kind.ALL_TO_ALL) == 2


def test_customized_layers_choose_their_own_groups() -> None:
    text = (
        "HYBRID_CUSTOMIZED\n4\n"
        "a -1 1 ALLGATHER 8 1 NONE 0 1 ALLREDUCE 8 0 HYBRID_DATA_MODEL\n"
        "b -1 1 ALLGATHER 8 1 NONE 0 1 ALLREDUCE 8 0 HYBRID_MODEL_DATA\n"
        "c -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 0 DATA\n"
        "d -1 1 ALLGATHER 8 1 ALLREDUCE 8 1 NONE 0 0 MODEL\n"
    )
    found = parse_astra(text, "x")
    assert parse_astra(found.render(), "x") == found
    made = found.workload("x", model_parallel=2)
    groups = {op.label: op.group for op in made.operations if isinstance(op, Collective)}
    assert groups == {
        "a forward all_gather": Group.MODEL,
        "a weight gradient all_reduce": Group.DATA,
        # Data-parallel among neighbours: the same two groups, the other way round.
        "b forward all_gather": Group.DATA,
        "b weight gradient all_reduce": Group.MODEL,
        "c weight gradient all_reduce": Group.ALL,
        "d forward all_gather": Group.ALL,
        "d input gradient all_reduce": Group.ALL,
    }


def test_overlap_shortens_an_iteration_to_the_longer_of_the_two(
    finish_times: Callable[..., list[int]],
) -> None:
    made = load_astra("resnet50").workload("r").in_order()

    def cost(operation: ProgramOp) -> int:
        return operation.bytes // 100  # 100 bytes per ns

    communication = 102_011_648 // 100
    together = max(finish_times(program(made, 8), cost))
    apart = max(finish_times(program(made.serialized(), 8), cost))
    assert apart == pytest.approx(made.total_compute_ns() + communication, abs=54)
    assert max(made.total_compute_ns() * 0.9, communication) < together < apart
    assert made.total_compute_ns() == 1_116_239


STRATEGIES = [
    "DATA",
    "MODEL",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_TRANSFORMER model_parallel_NPU_group: 2",
    "HYBRID_DLRM 0",
    "HYBRID_DLRM_ENHANCED 0",
]


@given(st.sampled_from(STRATEGIES), st.integers(2, 6), st.integers(0, 3), st.integers(1, 3))
def test_every_strategy_makes_an_acyclic_workload(
    strategy: str, layers: int, update: int, iterations: int
) -> None:
    used = strategy not in ("DATA",) and "DLRM" not in strategy
    there = "ALLREDUCE 8" if used else "NONE 0"
    gradient = "NONE 0" if strategy == "MODEL" else "ALLREDUCE 8"
    rows = [f"l{n} -1 1 {there} 1 {there} 1 {gradient} {update}" for n in range(layers)]
    text = "\n".join([strategy, str(layers), *rows])
    made = parse_astra(text, "x").workload("x", model_parallel=2, iterations=iterations)
    for shape in (made, made.in_order(), made.serialized(), made.in_order().serialized()):
        assert sorted(topological_order(shape)) == list(range(len(made.operations)))
        assert program(shape, 4)


phases = st.one_of(
    st.builds(Phase, st.integers(0, MAX_FIGURE)),
    st.builds(Phase, st.integers(0, MAX_FIGURE), st.sampled_from(Kind), st.integers(1, MAX_FIGURE)),
).filter(lambda phase: phase.kind is not Kind.BROADCAST)
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@given(
    st.lists(
        st.builds(Layer, names, phases, phases, phases, st.integers(0, MAX_FIGURE)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([Strategy.HYBRID_DATA_MODEL, Strategy.HYBRID_MODEL_DATA]),
)
def test_any_file_comes_back_as_it_was_rendered(layers: list[Layer], strategy: Strategy) -> None:
    found = AstraFile(strategy, tuple(layers))
    assert parse_astra(found.render(), "x") == found
    crlf = found.render().replace("\n", "\r\n").replace("\t", "   ")
    assert parse_astra(crlf, "x") == found
    other = replace(found, strategy=Strategy.HYBRID_DATA_MODEL)
    assert parse_astra(other.render(), "x") == other


GOOD = "l -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["f.txt:1:1: the file ends early; line 1 names the strategy, line 2 the layers"]),
        (
            f"HYBRID_DATA_MODE\n1\n{GOOD}",
            [
                "f.txt:1:1: strategy 'HYBRID_DATA_MODE' is not known; did you mean "
                "HYBRID_DATA_MODEL?"
            ],
        ),
        (
            f"data\n1\n{GOOD}",
            ["f.txt:1:1: strategy 'data' is not known; did you mean DATA?"],
        ),
        (
            f"DATA\none\n{GOOD}",
            ["f.txt:2:1: number of layers: 'one' is not a whole number from 1 up"],
        ),
        (
            f"DATA\n2\n{GOOD}",
            ["f.txt:2:1: 2 layers announced, 1 found; write 1 or add the missing ones"],
        ),
        (
            f"DATA\n1\n{GOOD}\n\n{GOOD}",
            [
                "f.txt:5:1: layer 2 of 1 announced in line 2; write 2 there or take the layer out",
            ],
        ),
        (
            "DATA\n1\nl -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8",
            [
                "f.txt:3:36: layer 'l' has 11 columns, DATA needs 12: name, -1, 3 of forward, 3 of "
                "input gradient, 3 of weight gradient, update"
            ],
        ),
        (
            "DATA\n1\nl\t-1\t1.5\tNONE\t0\t1\tNONE\t0\t-1\tALLREDUC\tx\t0",
            [
                "f.txt:3:6: forward compute time: '1.5' is not a whole number from 0 up",
                "f.txt:3:26: weight gradient compute time: '-1' is not a whole number from 0 up",
                "f.txt:3:38: weight gradient bytes: 'x' is not a whole number from 0 up",
                "f.txt:3:29: weight gradient collective: 'ALLREDUC' is not known; did you mean "
                "ALLREDUCE?",
            ],
        ),
        (
            "DATA\n1\nl -1 1 NONE 7 1 NONE 0 1 ALLREDUCE 0 0",
            [
                "f.txt:3:13: forward bytes: 7 bytes with NONE; write 0 or a collective",
                "f.txt:3:36: weight gradient bytes: ALLREDUCE over 0 bytes; write a size, or NONE "
                "0",
            ],
        ),
        (
            "DATA\n1\nl -1 1 NONE 0 1 ALLREDUCE 8 1 ALLREDUCE 8 0",
            [
                "f.txt:3:17: DATA never runs the input-gradient collective of layer 'l'; write "
                "NONE 0, or choose another strategy"
            ],
        ),
        (
            "MODEL\n1\nl -1 1 NONE 0 1 NONE 0 1 GOSSIP 8 0",
            [
                "f.txt:3:26: weight gradient collective: 'GOSSIP' is not known; use one of NONE, "
                "ALLREDUCE, ALLTOALL, ALLGATHER, REDUCESCATTER"
            ],
        ),
        (
            f"HYBRID_TRANSFORMER 4\n1\n{GOOD}",
            ["f.txt:1:20: HYBRID_TRANSFORMER needs 'model_parallel_NPU_group:' and a number here"],
        ),
        (
            f"HYBRID_TRANSFORMER model_parallel_NPU_group: 0\n1\n{GOOD}",
            ["f.txt:1:46: model_parallel_NPU_group: 0 must be between 1 and 4611686018427387903"],
        ),
        (
            f"HYBRID_DLRM\n1\n{GOOD}",
            ["f.txt:1:1: HYBRID_DLRM needs the last bottom layer after it, such as 4"],
        ),
        (
            f"HYBRID_DLRM 3\n2\n{GOOD}\n{GOOD}",
            [
                "f.txt:1:13: last bottom layer 3 leaves no top layer among the 2 layers; it must "
                "be below 1"
            ],
        ),
        (f"DATA 4\n1\n{GOOD}", ["f.txt:1:6: '4' is too much in line 1; leave it out"]),
        (
            f"HYBRID_CUSTOMIZED\n1\n{GOOD} MICRO",
            [
                "f.txt:3:40: strategy 'MICRO' is not known; use one of DATA, MODEL, "
                "HYBRID_DATA_MODEL, HYBRID_MODEL_DATA"
            ],
        ),
        (
            "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoints: 1 1 "
            f"checkpoint_initiates: 1 0\n2\n{GOOD}\n{GOOD}",
            [
                "f.txt:1:1: layer 0 initiates a forward pass from a checkpoint, but no checkpoint "
                "stands at or before it; add one to checkpoints:"
            ],
        ),
    ],
)
def test_mistakes_are_named_with_line_column_and_remedy(text: str, expected: list[str]) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_astra(text, "f.txt")
    assert list(caught.value.problems) == expected


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_its_place(text: str) -> None:
    problems: tuple[str, ...] = ()
    try:
        parse_astra(text, "f.txt")
    except WorkloadError as error:
        problems = error.problems
    assert all(problem.startswith("f.txt:") for problem in problems)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no\.txt: No such file.*one of resnet50, transformer"):
        load_astra("no.txt", tmp_path)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match=r"binary\.txt: not a text file"):
        load_astra("binary.txt", tmp_path)
