"""Random tables and random packets on the committed programs: every engine over P4Runtime does
what the software switch does in memory.

Entries, parameters and packets are drawn by hypothesis. Each packet goes in when the one before is
through, so that BMv2's threads cannot change their order. Nobody can set BMv2's random source:
the switch in memory runs everything twice, with the smallest and with the largest random number,
and where both say the same, so must the engine; else its packet is one of the two. How often marks
come is the business of test_every_engine.py. Queues are empty here and RED has nothing to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from committed_program import JOB_COUNTERS, MAIN_PROGRAM, STATE, Bench, Programmed, WireBench, host
from engines import Engine, Sent
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from random_frames import frames
from sample_frames import V4, V6
from sample_frames import frame as roce_frame

from ringstep.protocol import uec
from ringstep.protocol.marker import MarkerParams, ProgressMode
from ringstep.protocol.rocev2 import Opcode, build
from ringstep.protocol.tag import TagLayout
from ringstep.softswitch.tables import Exact

UEC_PROGRAM = "ringstep_v1model_uec"
PORTS = (1, 2, 3)
GROUP = 9
"""A next hop of all ports."""
INGRESS_PORT = 4
NEVER = (1 << 32) - 1
"""A window that does not end while a test runs: 71 minutes."""
MIDDLE = st.just(Opcode.RC_WRITE_MIDDLE)
EVERYWHERE = {4: "10.2.0.0/16", 6: "2001:db8:2::/48"}
"""What is routed to the group."""


@dataclass(frozen=True)
class Job:
    """A job's entries. It is found by `rule`: "qp", "pair", "tag", or, over UEC, "uec"."""

    number: int
    params: MarkerParams
    windows_end: bool
    by_port: bool
    rule: str
    path: int
    update: MarkerParams

    def block(self, port: int) -> int:
        return self.number % 1000 * 4 + (port if self.by_port else 0)

    @property
    def qp(self) -> int:
        return 0x100 + self.number


@dataclass(frozen=True)
class Scene:
    """Everything that both get. Jobs take their new parameters before packet `update_at`."""

    jobs: list[Job]
    paths: dict[int, int]
    routes: list[tuple[str, int]]
    seed: int
    packets: list[bytes]
    update_at: int


@dataclass
class Result:
    """What is seen from outside: packets, counters, and state but for times."""

    outs: list[list[Sent]]
    state: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


# -- what is drawn


@st.composite
def marker_params(draw: st.DrawFn) -> MarkerParams:
    step_bits = draw(st.sampled_from([3, 5, 14]))
    tau_den = draw(st.sampled_from([1, 4, 255]))
    return MarkerParams(
        # Sometimes, always, never. First stands everywhere what marks: it is drawn most often.
        k=draw(st.sampled_from([20_000, 1 << 16, 0])),
        tau_num=draw(st.integers(0, tau_den)),
        tau_den=tau_den,
        n_sample=draw(st.sampled_from([0, 1, 3])),
        n_warmup=draw(st.sampled_from([0, 0, 0, 2, 50])),
        alpha_max=draw(st.sampled_from([1, 3, 255])),
        q_gate=draw(st.sampled_from([None, None, None, 0])),
        layout=TagLayout(14 - step_bits, step_bits),
        mode=draw(st.sampled_from(list(ProgressMode))),
        packets_per_step=draw(st.sampled_from([0, 0, 4])),
        enabled=draw(st.integers(0, 7)) < 7,
        generation=draw(st.integers(1, 255)),
    )


@st.composite
def job_lists(draw: st.DrawFn, with_uec: bool) -> list[Job]:
    numbers = draw(st.lists(st.sampled_from([1, 2, 16383]), min_size=1, unique=True))
    rules = ["qp", "pair", "tag"]
    made = []
    for number in numbers:
        # One job owns a pair, and one the tags; a QP is each job's own.
        kinds = [*rules, "qp", "qp"] + ["uec"] * 3 * with_uec
        rule = draw(st.sampled_from(kinds))
        if rule in ("pair", "tag"):
            rules.remove(rule)
        params = draw(marker_params())
        made.append(
            Job(
                number,
                params,
                # Where each packet ends a window, none is ever marked.
                windows_end=draw(st.integers(0, 3)) == 3,
                by_port=draw(st.booleans()),
                rule=rule,
                path=draw(st.sampled_from([0, 0, 5, 6])),
                update=draw(st.one_of(st.just(params), marker_params())),
            )
        )
    return made


@st.composite
def packets_of(draw: st.DrawFn, jobs: Sequence[Job]) -> bytes:
    """A packet of a job's ring, mostly near where the others are, or anything."""
    if draw(st.integers(0, 5)) == 5:
        return draw(st.one_of(frames(), st.binary(min_size=1, max_size=120))) or b"\0"
    job = draw(st.sampled_from(jobs))
    v6 = draw(st.booleans())
    # The pair's rule names one destination.
    port = 1 if job.rule == "pair" else draw(st.sampled_from([*PORTS, 1, 1, 1]))
    to_group = job.rule == "tag" and draw(st.booleans())
    destination = _of_group(v6) if to_group else host(port, v6)
    step, psn = draw(st.sampled_from([1, 1, 2, 2, 3, 0])), draw(st.integers(1, 99))
    if draw(st.integers(0, 9)) == 9:
        step, psn = draw(st.integers(0, (1 << 14) - 1)), draw(st.integers(0, (1 << 24) - 1))
    ecn = draw(st.sampled_from([2, 2, 1, 2, 3, 0]))
    last = draw(st.integers(0, 9)) == 9
    vlan = draw(st.sampled_from([None, None, 7]))
    if job.rule == "uec":
        pds = uec.Pds(psn=psn, spdcid=step)
        ses = uec.Ses(job_id=0xA00000 + job.number, end_of_message=last)
        return uec.build(
            uec.UecFrame(
                src_mac=0x020000000001, dst_mac=0x020000000002, src_ip=(V6 if v6 else V4)[0],
                dst_ip=destination, sport=0x1234, pds=pds, ses=ses, body=bytes(44), ecn=ecn,
                vlan=vlan,
            )
        )  # fmt: skip
    others = st.sampled_from(list(Opcode)) if draw(st.integers(0, 5)) == 5 else MIDDLE
    opcode = Opcode.RC_WRITE_LAST if last else draw(others)
    sport = job.params.layout.sport(step % (job.params.layout.step_mask + 1))
    return build(
        roce_frame(
            opcode, v6=v6, dst_ip=destination, sport=sport, psn=psn, ecn=ecn, vlan=vlan,
            dest_qp=job.qp if job.rule == "qp" else 0x99,
        )
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn, with_uec: bool) -> Scene:
    jobs = draw(job_lists(with_uec))
    prefixes = st.tuples(
        st.sampled_from(["10.1.0.0/24", "10.1.0.2/31", "10.0.0.0/8", "0.0.0.0/0", "::/0",
                         "2001:db8:1::/64", "2001:db8::/32", "2001:db8:1::2/127"]),
        st.sampled_from([*PORTS, GROUP, 77]),
    )  # fmt: skip
    packets = draw(st.lists(packets_of(jobs), min_size=20, max_size=40))
    return Scene(
        jobs=jobs,
        paths=draw(st.dictionaries(st.sampled_from([5, 6]), st.sampled_from(PORTS))),
        routes=draw(st.lists(prefixes, max_size=4, unique_by=lambda one: one[0])),
        seed=draw(st.integers(0, (1 << 32) - 1)),
        packets=packets,
        update_at=draw(st.integers(0, len(packets))),
    )


def _of_group(v6: bool) -> Any:
    prefix = EVERYWHERE[6 if v6 else 4].partition("/")[0]
    return type(host(1, v6))(int(type(host(1, v6))(prefix)) + 0x11)


# -- what is done with it


def configure(bench: Programmed, job: Job, params: MarkerParams) -> None:
    values = dict(params.to_table())
    values["t_win"] = 0 if job.windows_end else NEVER
    bench.insert("job_params", (Exact(job.number),), "set_params", *values.values())


def program(bench: Programmed, scene: Scene) -> None:
    bench.seed(scene.seed)
    bench.hosts(*PORTS)
    bench.nexthop(GROUP, *PORTS)
    for prefix in EVERYWHERE.values():
        bench.route(prefix, GROUP)
    for prefix, nexthop in scene.routes:
        bench.route(prefix, nexthop)
    for path, port in scene.paths.items():
        bench.insert("planned_path", (Exact(path),), "forward", port, 0xA, 0xB)
    for port in PORTS:
        # Deeper than any queue here; spaces nothing.
        bench.red(port, 4000, 4000, 65535)
    for job in scene.jobs:
        configure(bench, job, job.params)
        for port in PORTS:
            bench.block_map(job.number, port, job.block(port))
        match job.rule:
            case "qp":
                for port in PORTS:
                    for v6 in (False, True):
                        bench.job_by_dst_qp(host(port, v6), job.qp, job.number, job.path)
            case "pair":
                for v6 in (False, True):
                    source = (V6 if v6 else V4)[0]
                    bench.job_by_pair(source, host(1, v6), job.number, job.path)
            case "tag":
                bench.job_by_tag(job.number, sport=(0xC000, 0xC000))
            case "uec":
                bench.job_by_uec_id(0xA00000 + job.number, job.number)


def updated(bench: Programmed, scene: Scene) -> None:
    for job in scene.jobs:
        configure(bench, job, job.update)


def counters(bench: Programmed, scene: Scene) -> dict[str, int]:
    found = {
        f"{alias} of {job.number}": bench.counter(alias, job.number)
        for job in scene.jobs
        for alias in JOB_COUNTERS.values()
    }
    found |= {f"ingress_drops {at}": bench.counter("ingress_drops", at) for at in range(4)}
    return found | {f"port_spared {port}": bench.counter("port_spared", port) for port in PORTS}


def in_memory(scene: Scene, name: str, random_number: int) -> Result:
    bench = Bench(program=name)
    bench.draw.value = random_number
    program(bench, scene)
    outs = []
    for turn, packet in enumerate(scene.packets):
        if turn == scene.update_at:
            updated(bench, scene)
        outs.append(bench.send(packet, 10 + turn, INGRESS_PORT))
    result = Result(outs, counters=counters(bench, scene))
    for job in scene.jobs:
        for port in PORTS:
            block = bench.block(job.block(port))
            del block["win_start"]
            anchors = tuple(bench.anchor(job.number, slot) for slot in range(4))
            result.state.append({**block, "anchors": anchors})
    return result


def over_the_wire(scene: Scene, name: str, engine: Engine) -> Result:
    bench = WireBench(engine, name)
    program(bench, scene)
    packets = [(INGRESS_PORT, packet) for packet in scene.packets]
    outs = engine.exchange(packets[: scene.update_at], 1)
    updated(bench, scene)
    outs += engine.exchange(packets[scene.update_at :], 1)
    result = Result(outs, counters=counters(bench, scene))
    for job in scene.jobs:
        for port in PORTS:
            reply = bench.read(job.number, job.block(port))
            found = {one: getattr(reply, one) for one in STATE if one != "win_start"}
            result.state.append({**found, "anchors": reply.anchors})
    return result


def check(scene: Scene, name: str, engine: Engine) -> None:
    found = over_the_wire(scene, name, engine)
    # Each number of the range marks where the largest does, and not where the smallest does not.
    marked, unmarked = (in_memory(scene, name, number) for number in (0, 0xFFFF))
    assert marked.state == unmarked.state, "state must not depend on chance"
    by_chance = 0
    for turn, packet in enumerate(scene.packets):
        possible = [sorted(marked.outs[turn]), sorted(unmarked.outs[turn])]
        assert sorted(found.outs[turn]) in possible, (turn, packet.hex())
        by_chance += possible[0] != possible[1]
    assert found.state == marked.state
    for key, most in marked.counters.items():
        assert unmarked.counters[key] <= found.counters[key] <= most, key
    if by_chance:
        event("a mark by chance")
    if any(one.enabled for job in scene.jobs for one in (job.params, job.update)) and any(
        marked.counters[f"job_marks of {job.number}"] for job in scene.jobs
    ):
        event("marked")


# A function's fixture is fine here: every example loads the program anew.
fuzz = settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@fuzz
@given(scene=scenes(with_uec=False))
def test_random_tables_and_packets(engine: Engine, scene: Scene) -> None:
    check(scene, MAIN_PROGRAM, engine)


@fuzz
@given(scene=scenes(with_uec=True))
def test_random_tables_and_packets_with_ultra_ethernet(engine: Engine, scene: Scene) -> None:
    check(scene, UEC_PROGRAM, engine)
