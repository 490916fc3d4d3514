"""Ultra Ethernet: both programs compiled with it, on the golden vectors of the marker.

The rows are the same; only the frames differ: JobID for the QP, source PDCID for the step, EOM for
LAST. A row that the marker does not follow over RoCEv2 becomes a packet that it does not over UEC.
"""

from __future__ import annotations

from typing import Any

import committed_program
import pytest
import t2na_program
import uec_vectors
from committed_program import JOB_COUNTERS, host
from golden_replay import VECTORS, Replay
from marker_reference import ReferenceJobs
from marker_vectors import Packet
from sample_frames import DST_MAC, SRC_MAC, V4, V6
from sample_frames import frame as roce_frame

from ringstep.protocol import uec
from ringstep.protocol.marker import JobCounters, MarkerParams
from ringstep.protocol.rocev2 import CE, Opcode, is_data
from ringstep.protocol.rocev2 import build as build_roce
from ringstep.protocol.tag import TagLayout
from ringstep.protocol.uec import NextHeader, Pds, PdsType, Ses, SesOpcode, UecFrame

families = pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
UNREGISTERED = 0x99
PSN_HIGH = 0x5A


def uec_id(job: int) -> int:
    """Return the JobID on the wire, which is not the Job_ID of the switch."""
    return 0xA00000 + job if job else UNREGISTERED


def uec_frame(port: int = 1, v6: bool = False, **more: Any) -> UecFrame:
    values: dict[str, Any] = {
        "src_mac": SRC_MAC, "dst_mac": DST_MAC, "src_ip": (V6 if v6 else V4)[0],
        "dst_ip": host(port, v6), "sport": 0x1234, "pds": Pds(psn=1, spdcid=5),
        "ses": Ses(job_id=uec_id(7)), "body": bytes(44), "ecn": 2,
    }  # fmt: skip
    return UecFrame(**(values | more))


def of_row(row: Packet, v6: bool) -> bytes:
    """Return the row's packet over UEC."""
    data = is_data(Opcode[row.opcode])
    pds = Pds(
        psn=PSN_HIGH << 24 | row.psn,
        # The tag's upper bits are anything: only the low S bits are the step.
        spdcid=row.sport,
        type=PdsType.ROD_REQUEST if "SEND" in row.opcode else PdsType.RUD_REQUEST,
        next_header=NextHeader.REQUEST_STANDARD if data else NextHeader.RESPONSE,
    )
    opcode = SesOpcode.SEND if "SEND" in row.opcode else SesOpcode.WRITE
    # What is no RoCEv2 tag has no counterpart: a job that no rule knows stands for it.
    job = row.job if TagLayout.is_tagged(row.sport) else 0
    ses = Ses(job_id=uec_id(job), opcode=opcode, end_of_message=row.is_last)
    return uec.build(uec_frame(row.port, v6, pds=pds, ses=ses, ecn=row.ecn))


def ecn_of(data: bytes, v6: bool) -> int:
    return data[15] >> 4 & 3 if v6 else data[15] & 3


class UecReplay(Replay):
    program = "ringstep_v1model_uec"

    def install(self, job: int) -> None:
        self.bench.job_by_uec_id(uec_id(job), job)

    def frame(self, row: Packet) -> bytes:
        return of_row(row, self.v6)


@families
@pytest.mark.parametrize("name", VECTORS)
def test_v1model_agrees_in_every_row(name: str, v6: bool) -> None:
    replay = UecReplay(name, v6)
    reference = ReferenceJobs()
    for settings, changed, row in VECTORS[name].replay():
        where = f"{name}.txt, line {row.line}"
        if changed:
            replay.configure(settings, {job for job, _ in changed})
        reference.take(settings, changed)
        reference.packet(settings, row)
        left = replay.send(row)
        anchored = row.followed and settings.jobs[row.job]["mode"] == "anchored"
        replay.expect(row, anchored)
        assert ecn_of(left, v6) == row.ecn_out, where
        replay.check_known_state(where)
    replay.check_all_state()
    for job, marker in reference.markers.items():
        counted = {f: replay.bench.counter(alias, job) for f, alias in JOB_COUNTERS.items()}
        assert JobCounters(**counted) == marker.counters


class Both:
    """The two programs with Ultra Ethernet, with a job 7 that is followed to port 1."""

    def __init__(self) -> None:
        self.v1model = committed_program.Bench(program="ringstep_v1model_uec")
        self.t2na = t2na_program.Bench({"RINGSTEP_UEC": ""})
        params = MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 28)
        self.v1model.hosts(1)
        self.t2na.hosts(1)
        self.v1model.job_params(7, params)
        self.t2na.set_params(7, params.to_table())
        self.v1model.job_by_uec_id(uec_id(7), 7)
        key = {"uec_job_id": uec_id(7)}
        self.t2na.table("job_by_uec_id").add(key, "set_job", job=7, path_id=0)
        for bench in (self.v1model, self.t2na):
            bench.block_map(7, 1, 70)
            bench.job_by_dst_qp(host(1), 0x11, 7)
        self.now = 1000

    def send(self, data: bytes) -> tuple[bytes | None, bool]:
        """Return what left, which must be the same, and whether it was followed."""
        self.now += 1
        before = self.v1model.counter("job_data", 7)
        expected = self.v1model.send(data, self.now)
        found = self.t2na.send(data, now_ns=self.now * 1000)
        assert ([] if found is None else [found]) == expected
        after = self.v1model.counter("job_data", 7)
        assert self.t2na.counter("job_data", 7) == after
        return (found[1] if found else None), after > before


@pytest.fixture
def both() -> Both:
    return Both()


@families
@pytest.mark.parametrize("vector", uec_vectors.load(), ids=lambda v: v.name)
def test_headers_of_the_vectors(both: Both, vector: uec_vectors.Vector, v6: bool) -> None:
    wire = int(vector.ses.get("job_id", 1))
    both.v1model.job_by_uec_id(wire, 7)
    key = {"uec_job_id": wire}
    both.t2na.table("job_by_uec_id").add(key, "set_job", job=7, path_id=0)
    whole = uec.build(uec_frame(v6=v6, body=b""))
    left, followed = both.send(whole[:-24] + vector.data)
    assert left is not None
    assert left.endswith(vector.data)
    assert followed == (vector.tag is not None)
    if vector.tag is not None:
        block = both.v1model.block(70)
        ends = vector.tag["last"]
        assert block["step_min"] == (vector.tag["pdc"] + ends) % (1 << 14)
        assert block["psn_rec"] == (0 if ends else vector.tag["psn"])
        assert both.t2na.block(70, 14) | {"win_start": 0} == block | {"win_start": 0}


@families
def test_every_type_header_and_opcode(both: Both, v6: bool) -> None:
    followed = set()
    for kind in range(32):
        for header in range(16):
            for opcode in (0, 1, 2, 5, 9, 0x3F):
                pds = Pds(psn=1, spdcid=5, type=kind, next_header=header)
                ses = Ses(job_id=uec_id(7), opcode=opcode)
                frame = uec_frame(v6=v6, pds=pds, ses=ses)
                if both.send(uec.build(frame))[1]:
                    followed.add((kind, header, opcode))
                    assert uec.tag_of(frame) is not None
                else:
                    assert uec.tag_of(frame) is None
    assert followed == {(k, h, o) for k in (2, 3) for h in (1, 2, 3) for o in (1, 5, 9)}


@families
def test_an_outpacing_packet_gets_ce_and_nothing_else_changes(both: Both, v6: bool) -> None:
    both.send(uec.build(uec_frame(v6=v6, pds=Pds(psn=50, spdcid=5))))
    sent = uec_frame(v6=v6, pds=Pds(psn=50, spdcid=6), vlan=0x123)
    left, followed = both.send(uec.build(sent))
    assert followed
    assert left is not None
    read = uec.parse(left)
    assert read.ecn == CE
    read.ecn, read.ttl = sent.ecn, sent.ttl
    read.src_mac, read.dst_mac = sent.src_mac, sent.dst_mac
    assert read == sent


@families
def test_lengths_that_contradict_one_another_are_routed_only(both: Both, v6: bool) -> None:
    whole = uec.build(uec_frame(v6=v6))
    at = 14 + (40 if v6 else 20) + 4
    for wrong in (0, 23, 31, 75, 77):
        data = whole[:at] + wrong.to_bytes(2, "big") + whole[at + 2 :]
        left, followed = both.send(data)
        assert left is not None
        assert not followed


@families
def test_short_within_the_headers(both: Both, v6: bool) -> None:
    whole = uec.build(uec_frame(v6=v6, body=b""))
    for length in range(len(whole)):
        assert both.send(whole[:length]) == (None, False)


def test_rocev2_is_followed_as_ever(both: Both) -> None:
    data = build_roce(roce_frame(dst_ip=host(1)))
    _, followed = both.send(data)
    assert followed


@pytest.mark.parametrize("name", ["in_step_ring", "anchored_psn_wrap", "untagged_and_unregistered"])
def test_rocev2_vectors_on_the_program_with_uec(name: str) -> None:
    class RoceReplay(Replay):
        program = "ringstep_v1model_uec"

    replay = RoceReplay(name, False)
    for settings, changed, row in VECTORS[name].replay():
        if changed:
            replay.configure(settings, {job for job, _ in changed})
        assert ecn_of(replay.send(row), False) == row.ecn_out
        replay.expect(row, row.followed and settings.jobs[row.job]["mode"] == "anchored")
        replay.check_known_state(f"{name}.txt, line {row.line}")
