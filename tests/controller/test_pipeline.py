"""A program that is not the controller's is refused before a switch is touched."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from pathlib import Path

import pytest
from finsy.pbutil import from_text
from finsy.proto import p4i

from ringstep.controller.pipeline import (
    DEFAULT_JSON,
    DEFAULT_P4INFO,
    OPTIONAL_TABLES,
    TABLES,
    UEC_P4INFO,
    UEC_TABLE,
    PipelineError,
    json_differences,
    load_pipeline,
    make_pipeline,
)
from ringstep.controller.plan import TABLE_ORDER


def packaged_p4info(name: str = DEFAULT_P4INFO) -> p4i.P4Info:
    text = (importlib.resources.files("ringstep") / "p4build" / name).read_text()
    return from_text(text, p4i.P4Info)


def table(info: p4i.P4Info, alias: str) -> p4i.Table:
    return next(table for table in info.tables if table.preamble.alias == alias)


def test_packaged_program_is_the_controllers() -> None:
    pipeline = load_pipeline()
    assert pipeline.cookie != 0
    assert {table.alias for table in pipeline.schema.tables} == set(TABLES)
    assert not pipeline.has(UEC_TABLE)
    with_uec = load_pipeline(uec=True)
    assert with_uec.cookie != pipeline.cookie
    assert {table.alias for table in with_uec.schema.tables} == {*TABLES, *OPTIONAL_TABLES}
    assert with_uec.has(UEC_TABLE)


def test_a_port_of_tofino_2_is_asked_in_its_own_pipe() -> None:
    info = packaged_p4info()
    assert make_pipeline(info, b"", "x").state_port(300) == 510
    info.pkg_info.arch = "t2na"
    pipeline = make_pipeline(info, b"", "x")
    assert [pipeline.state_port(port) for port in (1, 127, 128, 200, 256, 300, 400)] == [
        510, 510, 134, 134, 262, 262, 390,
    ]  # fmt: skip


def test_only_a_v1model_program_is_json(tmp_path: Path) -> None:
    binary = tmp_path / "tofino2.bin"
    binary.write_bytes(b"\x00\xff")
    info = packaged_p4info()
    info.pkg_info.arch = "t2na"
    path = tmp_path / "t2na.p4info.txtpb"
    path.write_text(str(info))
    assert load_pipeline(path, binary).is_t2na
    with pytest.raises(PipelineError, match="not JSON"):
        load_pipeline(device_json=binary)


def test_the_program_compiled_for_tofino_2_is_the_controllers(tmp_path: Path) -> None:
    binary = tmp_path / "tofino2.bin"
    binary.write_bytes(b"\x00\xff")
    build = Path(__file__).resolve().parents[2] / "p4src" / "build" / "tofino2"
    pipeline = load_pipeline(build / "ringstep_t2na.p4info.txtpb", binary)
    assert pipeline.is_t2na
    assert pipeline.max_group_size == 64
    mine, theirs = (
        {c.preamble.alias: c.size for c in info.counters}
        for info in (pipeline.schema.p4info, packaged_p4info())
    )
    assert mine == theirs


def test_every_table_with_entries_has_its_place_in_the_writing_order() -> None:
    assert set(TABLE_ORDER) == {*TABLES, *OPTIONAL_TABLES} - {"switch_config"}


def test_cookie_changes_with_either_file() -> None:
    info = packaged_p4info()
    first = make_pipeline(info, b"{}", "x").cookie
    assert make_pipeline(info, b"{} ", "x").cookie != first
    info.pkg_info.version = "other"
    assert make_pipeline(info, b"{}", "x").cookie != first


def test_table_that_a_program_need_not_have_must_still_be_right() -> None:
    info = packaged_p4info(UEC_P4INFO)
    table(info, UEC_TABLE).match_fields[0].bitwidth = 32
    with pytest.raises(PipelineError) as caught:
        make_pipeline(info, b"{}", "other.p4info.txtpb")
    assert str(caught.value).splitlines()[1:] == [
        "  table job_by_uec_id, field uec_job_id: EXACT of 32 bits; needs EXACT of 24 bits"
    ]


def drop_table(info: p4i.P4Info) -> None:
    info.tables.remove(table(info, "planned_path"))


def narrow_field(info: p4i.P4Info) -> None:
    table(info, "route_v6").match_fields[0].bitwidth = 64


def other_kind(info: p4i.P4Info) -> None:
    table(info, "job_by_tag").match_fields[0].match_type = p4i.MatchField.EXACT


def extra_field(info: p4i.P4Info) -> None:
    table(info, "red").match_fields.add(
        id=9, name="colour", bitwidth=2, match_type=p4i.MatchField.EXACT
    )


def const_default(info: p4i.P4Info) -> None:
    route = table(info, "route_v4")
    route.const_default_action_id = route.action_refs[0].id


def narrow_param(info: p4i.P4Info) -> None:
    action = next(action for action in info.actions if action.preamble.alias == "set_block")
    action.params[0].bitwidth = 8


def small_counter(info: p4i.P4Info) -> None:
    next(c for c in info.counters if c.preamble.alias == "job_marks").size = 16


def no_op(info: p4i.P4Info) -> None:
    header = next(
        header
        for header in info.controller_packet_metadata
        if header.preamble.alias == "packet_out"
    )
    del header.metadata[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_table, "table planned_path is missing"),
        (narrow_field, "table route_v6, field dst_addr: LPM of 64 bits; needs LPM of 128 bits"),
        (other_kind, "table job_by_tag, field sport: EXACT of 16 bits; needs TERNARY of 16 bits"),
        (extra_field, "table red, field colour: unknown to the controller"),
        (const_default, "table route_v4: default action is const; must be settable"),
        (narrow_param, "action set_block: parameters {'block': 8}; needs {'block': 16}"),
        (small_counter, "counter job_marks: size 16; needs 16384 cells"),
        (no_op, "header packet_out: field op of 7 bits is missing"),
    ],
)
def test_every_difference_is_named(change: Callable[[p4i.P4Info], None], message: str) -> None:
    info = packaged_p4info()
    change(info)
    with pytest.raises(PipelineError) as caught:
        make_pipeline(info, b"{}", "other.p4info.txtpb")
    head, *differences = str(caught.value).splitlines()
    assert head == (
        "other.p4info.txtpb: not the program of this controller; compile "
        "p4src/ringstep_v1model.p4 of the same version"
    )
    assert differences == [f"  {message}"]


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.p4info.txtpb"
    with pytest.raises(PipelineError, match=r"none\.p4info\.txtpb: cannot be read \(No such file"):
        load_pipeline(missing)
    broken = tmp_path / "broken.txtpb"
    broken.write_text("tables { preamble {")
    with pytest.raises(PipelineError, match=r"broken\.txtpb: not a P4Info in text form"):
        load_pipeline(broken)
    broken.write_text("")
    with pytest.raises(PipelineError, match=r"broken\.txtpb: not a P4Info in text form"):
        load_pipeline(broken)
    no_json = tmp_path / "x.json"
    no_json.write_text("P4")
    with pytest.raises(PipelineError, match=r"x\.json: not JSON .* use what p4c-bm2-ss writes"):
        load_pipeline(device_json=no_json)


def test_p4info_and_json_of_two_programs_are_refused_with_their_differences(
    tmp_path: Path,
) -> None:
    """stratum/stratum#485: a pair that does not match maps ids to the wrong tables."""
    folder = importlib.resources.files("ringstep") / "p4build"
    info, program = tmp_path / "p4info.txtpb", tmp_path / "program.json"
    info.write_text((folder / UEC_P4INFO).read_text())
    program.write_text((folder / DEFAULT_JSON).read_text())
    with pytest.raises(PipelineError, match="are of two programs") as caught:
        load_pipeline(info, program)
    assert "table RingstepIngress.classify.job_by_uec_id is not in the JSON" in str(caught.value)

    text = (folder / DEFAULT_P4INFO).read_text()
    info.write_text(text.replace("size: 16384", "size: 32768"))
    with pytest.raises(PipelineError, match="job_data: size 16384 in the JSON, 32768 in the P4I"):
        load_pipeline(info, program)


@pytest.mark.parametrize("program", [[], {}, {"pipelines": [{}]}, {"pipelines": [{"tables": [1]}]}])
def test_json_that_is_no_program_is_refused(program: object) -> None:
    (difference,) = json_differences(packaged_p4info(), program)
    assert "not what p4c-bm2-ss writes" in difference
