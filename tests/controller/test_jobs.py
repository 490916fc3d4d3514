"""What a job may ask for, and what is said about a request that makes no sense."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ringstep.controller.client import Q_GATE_OFF, job_spec
from ringstep.controller.jobs import (
    JobSpec,
    Marking,
    MatchKind,
    QueuePair,
    SpecError,
    Tag,
    Traffic,
    check_hosts,
    params_from_proto,
    params_to_proto,
    parse_tau,
    spec_from_proto,
)
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric import Topology, parse_topology
from ringstep.fabric.rings import Edge
from ringstep.protocol.marker import PROFILES, ProgressMode, Scope
from ringstep.protocol.tag import JobCarrier, TagLayout


def spec(**arguments: Any) -> JobSpec:
    arguments.setdefault("rings", [] if "queue_pairs" in arguments else [["h1", "h2", "h3"]])
    return spec_from_proto(job_spec(arguments.pop("name", "a"), **arguments))


def error(message: jobs_pb2.JobSpec) -> str:
    with pytest.raises(SpecError) as caught:
        spec_from_proto(message)
    return str(caught.value)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_profile_gives_scope_and_parameters(profile: str) -> None:
    job = spec(profile=profile, marking=Marking.ON)
    assert (job.scope, job.params) == (PROFILES[profile].scope, PROFILES[profile].params)


def test_ringstep_is_the_default_profile_and_pairs_the_default_match() -> None:
    job = spec()
    assert (job.profile, job.match) == ("ringstep", MatchKind.PAIR)
    assert job.edges == (Edge("h1", "h2"), Edge("h2", "h3"), Edge("h3", "h1"))


def test_marking_waits_for_a_decision_unless_it_is_asked_for() -> None:
    assert (spec().marking, spec().params.enabled) == (Marking.AUTO, False)
    for choice, enabled in ((Marking.AUTO, False), (Marking.ON, True), (Marking.OFF, False)):
        job = spec(marking=choice)
        assert (job.marking, job.params.enabled) == (choice, enabled)
    message = job_spec("a", rings=[["h1", "h2"]])
    message.overrides.enabled = True
    assert spec_from_proto(message).marking is Marking.ON
    message.overrides.enabled = False
    assert spec_from_proto(message).marking is Marking.OFF
    message.marking = jobs_pb2.MARKING_CHOICE_AUTO
    assert error(message) == (
        "spec.overrides.enabled: False, but marking is AUTO; give one of them"
    )


def test_psns_of_a_persistent_sender_are_anchored() -> None:
    persistent = Traffic(sender="persistent")
    assert spec(traffic=persistent).params.mode is ProgressMode.ANCHORED
    assert spec(traffic=Traffic(sender="qp_per_step")).params.mode is ProgressMode.PER_STEP
    given = spec(traffic=persistent, mode=ProgressMode.PER_STEP)
    assert given.params.mode is ProgressMode.PER_STEP
    assert given.traffic == persistent


def test_ultra_ethernet_jobs_are_found_by_job_id() -> None:
    job = spec(uec_job_ids=[0xFFFFFF, 7, 7])
    assert (job.match, job.uec_job_ids) == (MatchKind.UEC, (7, 0xFFFFFF))
    assert job.edges == (Edge("h1", "h2"), Edge("h2", "h3"), Edge("h3", "h1"))


def test_every_parameter_can_be_overridden() -> None:
    job = spec(
        k=0.5,
        tau=Fraction(1, 3),
        t_win_us=250,
        n_sample=4,
        n_warmup=5,
        alpha_max=6,
        q_gate=7,
        step_bits=8,
        mode=ProgressMode.ANCHORED,
        packets_per_step=9,
        marking=Marking.OFF,
        scope=Scope.SWITCH,
    )
    params = job.params
    assert (params.k, params.tau_num, params.tau_den, params.t_win) == (32768, 1, 3, 250)
    assert (params.n_sample, params.n_warmup, params.alpha_max, params.q_gate) == (4, 5, 6, 7)
    assert params.layout == TagLayout(6, 8)
    assert (params.mode, params.packets_per_step) == (ProgressMode.ANCHORED, 9)
    assert not params.enabled
    assert job.scope is Scope.SWITCH


def test_zero_is_a_value_and_the_gate_can_be_switched_off() -> None:
    params = spec(k=0.0, n_warmup=0, n_sample=0, q_gate=Q_GATE_OFF).params
    assert (params.k, params.n_warmup, params.n_sample, params.q_gate) == (0, 0, 0, None)


def test_parameters_survive_storage() -> None:
    for job in (spec(), spec(profile="paper", k=0.003, job_bits=4, mode=ProgressMode.ANCHORED)):
        message = params_to_proto(job.params, job.scope)
        scope, params = params_from_proto(message, generation=job.params.generation)
        assert (scope, params) == (job.scope, job.params)


def test_connections_are_found_by_destination_qp() -> None:
    job = spec(queue_pairs=[QueuePair("h1", "h3", 17), QueuePair("h1", "h3", 18)])
    assert job.match is MatchKind.DST_QP
    assert job.edges == (Edge("h1", "h3"),)


def test_tag_makes_the_match_a_tag() -> None:
    job = spec(tag=Tag(JobCarrier.DSCP, 3))
    assert (job.match, job.tag) == (MatchKind.TAG, Tag(JobCarrier.DSCP, 3))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            job_spec("7up", rings=[["h1", "h2"]]),
            "spec.name: '7up' is not a job name; start with a letter, then letters, digits, '_', "
            "'-' or '.', at most 63 characters",
        ),
        (
            job_spec("a"),
            "spec.rings: empty, and so is queue_pairs; give the hosts of a ring in ring order",
        ),
        (
            job_spec("a", rings=[["h1", "h2"], ["h1"]]),
            "spec.rings[2].hosts: a ring of 1 hosts has no edges; name at least two hosts",
        ),
        (
            job_spec("a", rings=[["h1", "h2", "h1"]]),
            "spec.rings[1].hosts: host 'h1' stands twice in one ring; name every host once",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], match=MatchKind.DST_QP),
            "spec.queue_pairs: empty, but match is DST_QP; give (src, dst, dest_qp) of every "
            "connection, or match by PAIR",
        ),
        (
            job_spec("a", queue_pairs=[QueuePair("h1", "h2", 0)]),
            "spec.queue_pairs[1].dest_qp: 0: must be in 1..16777215",
        ),
        (
            job_spec("a", queue_pairs=[QueuePair("h1", "h1", 1)]),
            "spec.queue_pairs[1].dst: 'h1' is also src; a connection has two ends",
        ),
        (
            job_spec("a", queue_pairs=[QueuePair("", "h1", 1)]),
            "spec.queue_pairs[1].src: empty; give the name of a host",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], profile="fast"),
            "spec.profile: 'fast' is not a profile; use one of paper, ringstep",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], k=1.5),
            "spec.overrides.k: k = 1.5: must be in 0..1 (the paper uses 0.001 to 0.01)",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], k=float("nan")),
            "spec.overrides.k: k = nan: must be in 0..1 (the paper uses 0.001 to 0.01)",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], t_win_us=0),
            "spec.overrides.t_win_us: t_win = 0: must be in 1..4294967295",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], alpha_max=256),
            "spec.overrides.alpha_max: alpha_max = 256: must be in 1..255",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], q_gate=-2),
            "spec.overrides.q_gate: q_gate = -2: must be in 0..524286",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], step_bits=8, job_bits=8),
            "spec.overrides.step_bits: tag layout J=8, S=8: J + S must be 14, the bits below "
            "0xC000",
        ),
        (
            jobs_pb2.JobSpec(
                name="a",
                rings=[jobs_pb2.Ring(hosts=["h1", "h2"])],
                overrides=jobs_pb2.MarkerOverrides(tau=jobs_pb2.Fraction(num=1, den=0)),
            ),
            "spec.overrides.tau: tau_den = 0: must be in 1..255",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], tag=Tag(JobCarrier.SPORT, 1)),
            "spec.overrides.job_bits: 0, but the tag travels in the source port; give the bits of "
            "the job tag",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], tag=Tag(JobCarrier.SPORT, 4), job_bits=2),
            "spec.tag.value: 4: must be in 0..3",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], tag=Tag(JobCarrier.DSCP, 0)),
            "spec.tag.value: 0: must be in 1..63",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], match=MatchKind.TAG),
            "spec.tag.carrier: not set; use SPORT, RESV6A or DSCP",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], match=MatchKind.PAIR, tag=Tag(JobCarrier.DSCP, 1)),
            "spec.tag: set, but match is PAIR; use match TAG",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], match=MatchKind.UEC),
            "spec.uec_job_ids: empty, but match is UEC; give the JobID of the job's packets",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], match=MatchKind.PAIR, uec_job_ids=[7]),
            "spec.uec_job_ids: set, but match is PAIR; use match UEC",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], uec_job_ids=[7, 1 << 24]),
            "spec.uec_job_ids[2]: 16777216: must be in 0..16777215",
        ),
        (
            job_spec("a", queue_pairs=[QueuePair("h1", "h2", 1)], uec_job_ids=[7]),
            "spec.queue_pairs: set, but match is UEC, which has no queue pairs; give rings",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], tag=Tag(JobCarrier.DSCP, 1), uec_job_ids=[7]),
            "spec.uec_job_ids: set, but match is TAG; use match UEC",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], uec_job_ids=range(257)),
            "spec.uec_job_ids: 257: use at most 256",
        ),
        (
            job_spec("a", rings=[["h1", "h2"]], traffic=Traffic(preset="a b")),
            "spec.traffic.preset: 'a b' is not a name, such as connectx",
        ),
        (
            job_spec("a\n", rings=[["h1", "h2"]]),
            "spec.name: 'a\\n' is not a job name; start with a letter, then letters, digits, "
            "'_', '-' or '.', at most 63 characters",
        ),
        (
            job_spec("a", queue_pairs=[QueuePair("h1", "h2", 7), QueuePair("h3", "h2", 7)]),
            "spec.queue_pairs[2]: h3->h2:7, but queue_pairs[1] says that queue pair 7 of h2 "
            "receives from h1; a connection has one sender, give each its own dest_qp",
        ),
    ],
)
def test_nonsense_is_refused_by_field(message: jobs_pb2.JobSpec, text: str) -> None:
    assert error(message) == text


def test_queue_pair_that_is_named_twice_or_on_two_hosts_is_no_clash() -> None:
    pairs = [QueuePair("h1", "h2", 7), QueuePair("h1", "h2", 7), QueuePair("h1", "h3", 7)]
    assert spec(queue_pairs=pairs).queue_pairs == tuple(pairs)


def test_future_enum_values_are_refused() -> None:
    message = job_spec("a", rings=[["h1", "h2"]])
    message.match = 99  # type: ignore[assignment]
    assert error(message) == "spec.match: 99: use DST_QP, PAIR, TAG or UEC"
    message = job_spec("a", rings=[["h1", "h2"]])
    message.marking = 99  # type: ignore[assignment]
    assert error(message) == "spec.marking: 99: use AUTO, ON or OFF"
    message = job_spec("a", rings=[["h1", "h2"]])
    message.overrides.scope = 99  # type: ignore[assignment]
    assert error(message) == "spec.overrides.scope: 99: use SWITCH or PORT"


def test_hosts_must_be_in_the_topology(topology: Topology) -> None:
    check_hosts(spec(), topology)
    with pytest.raises(SpecError) as caught:
        check_hosts(spec(rings=[["h1", "h9"]]), topology)
    assert str(caught.value) == (
        "spec.rings[1].hosts: host 'h9' is not in the topology; known hosts: h1, h2, h3, h4"
    )


def test_hosts_need_a_common_address_family(fabric_text: str) -> None:
    topology = parse_topology(fabric_text.replace('ip = "10.0.1.2"', 'ip = "fd00:1::2"'))
    with pytest.raises(SpecError, match="h2->h4: the two hosts have no common address family"):
        check_hosts(spec(rings=[["h2", "h4"]]), topology)


@pytest.mark.parametrize(
    ("text", "tau"), [("1/4", Fraction(1, 4)), ("0.25", Fraction(1, 4)), ("1", Fraction(1))]
)
def test_tau_is_written_as_fraction_or_decimal(text: str, tau: Fraction) -> None:
    assert parse_tau(text) == tau


@pytest.mark.parametrize("text", ["", "x", "1/0", "2", "-1/4"])
def test_tau_outside_its_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a fraction|is outside"):
        parse_tau(text)
