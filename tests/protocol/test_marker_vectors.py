"""The golden vectors: they are what the generator yields, and two markers agree with them."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import marker_vectors
import pytest
from marker_oracle import OracleJob, OracleParams
from marker_reference import ReferenceJobs
from marker_vectors import COLUMNS, Packet, Settings, VectorError

from ringstep.protocol.rocev2 import Opcode, is_data, is_last

VECTORS = {vector.name: vector for vector in marker_vectors.load_all()}
every_vector = pytest.mark.parametrize("name", VECTORS)


def _generator() -> ModuleType:
    path = marker_vectors.MARKER_DIR.parent / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_marker_vectors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_are_what_the_generator_yields() -> None:
    differing = _generator().differing()
    assert differing == [], "run python tests/vectors/generate.py and read the diff"


def test_the_scenarios_of_the_contract_are_there() -> None:
    wanted = {
        "in_step_ring", "late_start", "snowball", "step_wrap", "psn_wrap_per_step",
        "anchored_psn_wrap", "reordering_across_step_end", "duplicates_and_retransmissions",
        "lost_last", "several_messages_per_step", "alpha_rises_and_decays", "alpha_max_reached",
        "alpha_max_lowered_while_running", "sample_guard", "warm_up", "idle_windows",
        "generation_change", "not_ect", "control_packets_untouched", "untagged_and_unregistered",
        "two_jobs_interleaved", "scope_port", "scope_switch", "queue_gate",
        "anchored_several_qps", "anchored_lost_anchor", "anchored_first_reordered", "k_zero",
        "k_one", "tau_zero_and_one", "shortest_window", "alpha_max_one", "smallest_step_space",
        "widest_values", "paused_but_followed", "uc_opcodes", "send_opcodes", "clock_wrap",
    }  # fmt: skip
    assert wanted <= VECTORS.keys()


@every_vector
def test_reference_agrees_in_every_row(name: str) -> None:
    jobs = ReferenceJobs()
    for settings, changed, packet in VECTORS[name].replay():
        jobs.take(settings, changed)
        expected = {c: getattr(packet, c) for c in marker_vectors.EXPECTED_COLUMNS}
        assert jobs.packet(settings, packet) == expected, _where(name, packet)


@every_vector
def test_oracle_agrees_in_every_row(name: str) -> None:
    jobs: dict[int, OracleJob] = {}
    for settings, changed, packet in VECTORS[name].replay():
        for job in {job for job, _ in changed}:
            params = OracleParams.of(settings.jobs[job])
            jobs.setdefault(job, OracleJob(params)).params = params
        where = _where(name, packet)
        block = settings.blocks.get((packet.job, packet.port))
        followed = (
            block is not None
            and packet.sport >= 0xC000
            and ("SEND" in packet.opcode or "WRITE" in packet.opcode)
        )
        assert packet.followed == followed, where
        mark = False
        if followed:
            assert block is not None
            job = jobs[packet.job]
            step = (packet.sport & 0x3FFF) % 2**job.params.step_bits
            verdict = job.packet(
                block, packet.now_us, step, packet.psn, packet.is_last, packet.r, packet.qdepth
            )
            mark = verdict.mark
            assert packet.block == block, where
            assert packet.step == step, where
            assert packet.progress == verdict.progress, where
            assert packet.base == verdict.base, where
            assert packet.state == {
                "step_min": verdict.block.step_min,
                "psn_rec": verdict.block.psn_rec,
                "alpha": verdict.block.alpha,
                "cnt_total": len(verdict.block.window),
                "cnt_op": sum(verdict.block.window),
                "win_start": verdict.block.since,
                "generation": verdict.block.generation,
            }, where
        assert packet.mark == mark, where
        # CE only where the packet can carry it, and where somebody asked for it.
        marked = packet.ecn in (1, 2) and (mark or packet.red == 1)
        assert packet.ecn_out == (3 if marked else packet.ecn), where


@every_vector
def test_rows_keep_the_rules_of_the_format(name: str) -> None:
    vector = VECTORS[name]
    assert vector.description
    earlier: Packet | None = None
    for settings, _, packet in vector.replay():
        where = _where(name, packet)
        opcode = Opcode[packet.opcode]
        data = "SEND" in packet.opcode or "WRITE" in packet.opcode
        assert is_data(opcode) == data, where
        assert is_last(opcode) == (data and packet.is_last), where
        red = settings.red_above is not None and packet.qdepth > settings.red_above
        assert packet.red == red, where
        if packet.sport >= 0xC000:
            bits = int(settings.jobs.get(packet.job, {"step_bits": "14"})["step_bits"])
            tag = int(settings.jobs.get(packet.job, {"tag": "0"})["tag"])
            assert packet.sport == 0xC000 | tag << bits | (packet.step or 0), where
        else:
            assert packet.step is None, where
        if earlier is not None:
            passed = (packet.now_us - earlier.now_us) % 2**48
            assert earlier.qdepth + (packet.qdepth > 0) < passed < 2**47, where
        earlier = packet


def test_vectors_mark_and_do_not_mark() -> None:
    rows = [packet for vector in VECTORS.values() for packet in vector.packets if packet.followed]
    marked = sum(packet.mark for packet in rows)
    assert len(rows) > 1000
    assert 0.05 < marked / len(rows) < 0.5


ROW = "1 1 1 RC_WRITE_MIDDLE 0xC001 1 5 2 0 0 7 0 2 5 - 16 1 5 1 1 0 1 1"


def test_reader_takes_comments_settings_and_rows() -> None:
    head = f"# What it shows.\n\nformat = 1\ncolumns = {' '.join(COLUMNS)}\n"
    text = f"{head}  {ROW}\njob.1.k = 0\n{ROW}\n"
    vector = marker_vectors.parse(text, "sample")
    assert vector.description == "What it shows."
    first, second = vector.packets
    assert (first.sport, first.base, first.win_start, first.line) == (0xC001, None, 1, 5)
    changes = [list(changed) for _, changed, _ in vector.replay()]
    assert changes == [[], [(1, "k")]]
    assert second.line == 7


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"format = 1\n{ROW}", "line 2: a row before the line 'columns = ...'"),
        (f"columns = {' '.join(COLUMNS)}\n{ROW} 9", "line 2: 24 columns; a row has 23"),
        (
            f"columns = {' '.join(COLUMNS)}\n{ROW.replace('0xC001', 'port')}",
            "line 2: sport 'port' is neither a number nor '-'",
        ),
        ("format = 2", "line 1: format 2; this reader knows 1"),
        ("columns = now_us", "line 1: columns differ from now_us job"),
        ("job.1.gain = 3", "line 1: unknown key 'job.1.gain'"),
        ("block.1.x = 3", "line 1: invalid literal"),
    ],
)
def test_reader_names_the_broken_line(text: str, complaint: str) -> None:
    with pytest.raises(VectorError) as caught:
        marker_vectors.parse(text, "sample")
    assert f"sample, {complaint}" in str(caught.value)


def test_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match=r"unknown key 'blok\.1\.1'"):
        Settings().apply(marker_vectors.Setting("blok.1.1", "4"))


def _where(name: str, packet: Packet) -> str:
    return f"{name}.txt, line {packet.line}"
