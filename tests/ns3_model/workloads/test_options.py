"""Sources and options as scenario files give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringstep_ns3.workloads import (
    MODELS,
    Inner,
    Workload,
    WorkloadError,
    build,
    program,
    write_chakra,
)


@pytest.mark.parametrize("source", [*MODELS, "astra:resnet50", "astra:transformer", "astra:dlrm"])
def test_every_source_builds_a_program(source: str) -> None:
    assert program(build(source), 8)


def test_files_are_found_beside_the_scenario(tmp_path: Path) -> None:
    made = build("astra:micro", {"cycle_ns": 1000})
    (tmp_path / "w.json").write_text(made.to_json())
    assert build("json:w.json", base=tmp_path) == made
    (tmp_path / "w.txt").write_text("MICRO\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 0\n")
    assert build("astra:w.txt", base=tmp_path).total_bytes() == 8
    write_chakra(made, 2, tmp_path / "t")
    assert build("chakra:t", {"dims": "2x1"}, tmp_path).total_bytes() == made.total_bytes()


def test_options_reach_the_workload() -> None:
    made = build(
        "transformer",
        {
            "iterations": 2,
            "compute_speedup": 64,
            "communication_scale": 0.5,
            "model_parallel": 4,
            "inner": "data",
            "batch": 64,
            "d_model": 1024,
            "heads": 16,
        },
    )
    assert (made.iterations, made.model_parallel, made.inner) == (2, 4, Inner.DATA)
    plain = build("transformer", {"model_parallel": 4, "batch": 64, "d_model": 1024, "heads": 16})
    assert made.total_compute_ns() == pytest.approx(plain.total_compute_ns() / 64, rel=0.01)
    assert made.total_bytes() == pytest.approx(plain.total_bytes() / 2, abs=len(made.operations))


def test_the_transformer_file_can_be_split_otherwise() -> None:
    assert build("astra:transformer").model_parallel == 4
    assert build("astra:transformer", {"model_parallel": 8}).model_parallel == 8


@pytest.mark.parametrize(
    ("source", "options", "problems"),
    [
        ("vgg61", {}, ["source 'vgg61' is not known; did you mean 'vgg16'?"]),
        (
            "tape:x",
            {},
            [
                "source 'tape:x' is not known; use astra:NAME_OR_FILE, chakra:PREFIX, json:FILE or "
                f"one of {', '.join(MODELS)}"
            ],
        ),
        (
            "astra:resnet50",
            {"cycles_ns": 1, "batch": 3},
            [
                "option 'cycles_ns' is not known; did you mean cycle_ns?",
                "option batch does not apply to 'astra:resnet50'; it takes collectives, "
                "communication_scale, compute_speedup, cycle_ns, inner, iterations, "
                "model_parallel, overlap",
            ],
        ),
        (
            "vgg16",
            {"batch": 0, "collectives": "chaos"},
            [
                "option collectives = 'chaos': Input should be 'in_order' or 'concurrent'",
                "option batch = 0: Input should be greater than or equal to 1",
            ],
        ),
    ],
)
def test_what_cannot_be_is_said(
    source: str, options: dict[str, object], problems: list[str]
) -> None:
    with pytest.raises(WorkloadError) as caught:
        build(source, options)
    assert list(caught.value.problems) == problems


def test_overlap_off_is_one_chain() -> None:
    operations = program(build("vgg16", {"overlap": False, "iterations": 2}), 4)
    assert all(index - 1 in op.after for index, op in enumerate(operations) if index)


def test_a_json_workload_keeps_its_iterations(tmp_path: Path) -> None:
    made = build("vgg16", {"iterations": 3})
    (tmp_path / "w.json").write_text(made.to_json())
    back = build("json:w.json", base=tmp_path)
    assert isinstance(back, Workload)
    assert back == made
    assert build("json:w.json", {"iterations": 1}, tmp_path).iterations == 1
