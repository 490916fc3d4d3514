"""Commands for jobs against a controller whose answers are canned."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import grpc
import pytest
from commands import read, run
from fake_controller import FakeController, job, parameters, problem
from forked import ForkedProcess

from ringstep.controller.v1 import jobs_pb2

RING = ("--ring", "h1,h3")


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        yield fake


def leased(**changes: object) -> jobs_pb2.Job:
    return job(lease_s=600, lease_remaining_ms=598_500, **changes)


def test_register_sends_what_the_options_say(controller: FakeController) -> None:
    controller.answers["Jobs.Register"] = jobs_pb2.RegisterResponse(job=leased())
    shown = read(
        "job", "register", "--name", "resnet", *RING, "--ring", "h2,h4", "--channels", "4",
        "--channels", "2", "--rail", "r0", "--rail", "r1", "--tenant", "research", "--paths",
        "ecmp", "--followers", "tor", "--lease", "10m", "--rebalance", "--request-id", "r1",
        at=controller,
    )  # fmt: skip
    (request,) = controller.asked("Jobs.Register")
    spec = request.spec
    assert (request.request_id, request.rebalance, spec.name) == ("r1", True, "resnet")
    assert [(list(ring.hosts), ring.channels, ring.rail) for ring in spec.rings] == [
        (["h1", "h3"], 4, "r0"), (["h2", "h4"], 2, "r1"),
    ]  # fmt: skip
    assert (spec.tenant, spec.lease_s) == ("research", 600)
    assert spec.paths == jobs_pb2.PATHS_CHOICE_ECMP
    assert spec.followers == jobs_pb2.FOLLOWERS_TOR
    assert (shown["tenant"], shown["lease_s"], shown["paths_choice"]) == (
        "research", 600, "planned",
    )  # fmt: skip


def test_what_is_the_default_is_left_unsaid(controller: FakeController) -> None:
    """So that the same command makes the same request, whichever way it is written."""
    controller.answers["Jobs.Register"] = jobs_pb2.RegisterResponse(job=job())
    read("job", "register", "--name", "a", *RING, at=controller)
    read(
        "job", "register", "--name", "a", *RING, "--paths", "auto", "--followers", "everywhere",
        "--marking", "auto", at=controller,
    )  # fmt: skip
    first, second = controller.asked("Jobs.Register")
    assert first.spec == second.spec
    assert first.request_id != second.request_id


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((*RING, "--channels", "2", "--channels", "2"), "given 2 times for 1 rings"),
        ((*RING, "--channels", "0"), "Invalid value for '--channels'"),
        ((*RING, "--lease", "soon"), "'soon' is not a duration; write a number with s, m, h or d"),
        ((*RING, "--lease", "1.5s"), "a lease has whole seconds"),
        ((*RING, "--paths", "best"), "'best' is not one of"),
        ((*RING, "--cert", "/none.pem"), "the key is missing"),
        ((*RING, "--token-file", "/none"), "/none: cannot be read"),
        ((*RING, "--controller", "a:1,b"), "'b' is not HOST:PORT"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], text: str) -> None:
    result = run("job", "register", "--name", "a", *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.replace("│", " ").split())


def test_token_is_sent_and_only_over_what_is_safe(
    controller: FakeController, tmp_path: Path
) -> None:
    controller.answers["Jobs.List"] = jobs_pb2.ListResponse()
    (tmp_path / "token").write_text("rs_secret\n")
    read("job", "list", "--token-file", str(tmp_path / "token"), at=controller)
    assert run("job", "list", at=controller, RINGSTEP_TOKEN="rs_other").exit_code == 0
    tokens = [metadata["authorization"] for _, _, metadata in controller.calls]
    assert tokens == ["Bearer rs_secret", "Bearer rs_other"]
    away = run("job", "list", "--controller", "198.51.100.1:9560", RINGSTEP_TOKEN="rs_other")
    assert away.exit_code == 2
    assert "rs_other" not in away.output


def test_list_shows_tenant_and_lease_of_one_tenant(controller: FakeController) -> None:
    spec = jobs_pb2.JobSpec(name="other", rings=[jobs_pb2.Ring(hosts=["h2", "h4"])], tenant="ads")
    controller.answers["Jobs.List"] = jobs_pb2.ListResponse(jobs=[leased(), job(id_=2, spec=spec)])
    assert [one["name"] for one in read("job", "list", at=controller)] == ["resnet", "other"]
    assert [one["name"] for one in read("job", "list", "--tenant", "ads", at=controller)] == [
        "other"
    ]
    text = run("job", "list", at=controller).stdout
    assert "research" in text
    assert "10m, 9m 58s left" in text


def test_show_tells_lease_tenant_rails_and_planned_paths(controller: FakeController) -> None:
    hops = [jobs_pb2.PathHop(switch="tor1", port=11), jobs_pb2.PathHop(switch="spine1", port=2)]
    shown = leased(
        paths=[jobs_pb2.PlannedPath(src="h1", dst="h3", hops=hops)],
        owner="slurm",
        moving="spine2 is drained",
    )
    shown.spec.rings[0].rail = "r0"
    shown.spec.rings[0].channels = 4
    controller.answers["Jobs.State"] = jobs_pb2.StateResponse(job=shown)
    text = run("job", "show", "resnet", at=controller).stdout
    for part in (
        "research", "slurm", "10m, 9m 58s left", "ring, rail r0", "h1 -> h3 -> h1 (4 channels)",
        "tor1:11 spine1:2", "job resnet is moving: spine2 is drained",
    ):  # fmt: skip
        assert part in text
    data = read("job", "show", "resnet", at=controller)["job"]
    assert data["paths"] == [
        {
            "src": "h1", "dst": "h3", "dest_qp": 0,
            "hops": [{"switch": "tor1", "port": 11}, {"switch": "spine1", "port": 2}],
        }
    ]  # fmt: skip


def test_renew_once_says_how_long_the_lease_is(controller: FakeController) -> None:
    controller.answers["Jobs.Renew"] = jobs_pb2.RenewResponse(job=leased())
    result = run("job", "renew", "resnet", "--lease", "1h30m", "--generation", "3", at=controller)
    assert result.stdout == "job resnet (1) is renewed: 9m 58s left\n"
    (request,) = controller.asked("Jobs.Renew")
    assert (request.job.name, request.job.generation, request.lease_s) == ("resnet", 3, 5400)
    controller.answers["Jobs.Renew"] = jobs_pb2.RenewResponse(job=job())
    assert "has no lease" in run("job", "renew", "resnet", at=controller).stdout


class Running:
    """A command as a process, with its output to be read while it runs."""

    def __init__(self, controller: FakeController, *arguments: str) -> None:
        reader, writer = os.pipe()
        self.stdout = os.fdopen(reader)
        self._errors = TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        with os.fdopen(writer, "wb") as output:
            self.process = ForkedProcess(
                [*arguments, "--controller", controller.target], output, self._errors
            )

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Wait for the end, of a signal if there is one; return status, rest of output, errors."""
        try:
            if number is not None:
                self.process.send_signal(number)
            status = self.process.wait(60)
        finally:
            self.process.kill()
        with self.stdout, self._errors:
            self._errors.seek(0)
            return status, self.stdout.read(), self._errors.read()


def test_renewing_goes_on_until_the_job_is_gone(controller: FakeController) -> None:
    """The generation of the first renewal is held on to; a missing answer is no end."""
    gone = (grpc.StatusCode.NOT_FOUND, "no live job has name 'resnet'", None)
    away = (grpc.StatusCode.UNAVAILABLE, "restarting", None)
    again = threading.Event()

    def renew(_: object) -> jobs_pb2.RenewResponse:
        if not again.is_set():
            again.set()
            controller.refusals["Jobs.Renew"] = [away, away, gone]
        return jobs_pb2.RenewResponse(job=leased(generation=7))

    controller.answers["Jobs.Renew"] = renew
    process = Running(controller, "job", "renew", "resnet", "--every", "1s", "--json")
    status, output, errors = process.end()
    assert status == 0, errors
    assert [json.loads(line)["name"] for line in output.splitlines()] == ["resnet"]
    assert "not renewed: no controller answers" in errors
    assert "job resnet is gone; no more to renew" in errors
    assert [one.job.generation for one in controller.asked("Jobs.Renew")] == [0, 7, 7, 7]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_renewing_ends_with_a_signal(
    controller: FakeController, number: signal.Signals, status: int
) -> None:
    controller.answers["Jobs.Renew"] = jobs_pb2.RenewResponse(job=leased())
    process = Running(controller, "job", "renew", "resnet", "--every", "1h", "--json")
    assert process.stdout.readline()
    found, _, errors = process.end(number)
    assert found == status
    assert "Traceback" not in errors


def test_renewing_a_job_that_never_was_is_a_failure(controller: FakeController) -> None:
    gone = (grpc.StatusCode.NOT_FOUND, "no live job has name 'nobody'", None)
    controller.refuse_all = gone
    result = run("job", "renew", "nobody", "--every", "60s", at=controller)
    assert (result.exit_code, result.stderr) == (1, "error: no live job has name 'nobody'\n")


def test_update_changes_only_what_is_given(controller: FakeController) -> None:
    changed = job(parameters=parameters(k=0.005))
    controller.answers["Jobs.UpdateParameters"] = jobs_pb2.UpdateParametersResponse(job=changed)
    shown = read(
        "job", "update", "resnet", "--k", "0.005", "--tau", "1/3", "--q-gate", "off", "--paused",
        at=controller,
    )  # fmt: skip
    assert shown["parameters"]["k"] == 0.005
    (request,) = controller.asked("Jobs.UpdateParameters")
    fields = [field.name for field, _ in request.changes.ListFields()]
    assert fields == ["k", "tau", "q_gate", "enabled"]
    assert not request.changes.enabled
    nothing = run("job", "update", "resnet", at=controller)
    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert "nothing to change" in nothing.stderr
    negative = run("job", "update", "resnet", "--t-win-us", "-1", at=controller)
    assert negative.exit_code == 2
    assert "not negative, and below 2**32" in negative.stderr


STATE = jobs_pb2.StateResponse(
    switches=[
        jobs_pb2.SwitchJobState(
            switch="tor1",
            blocks=[jobs_pb2.BlockState(block=4, generation=1, step_min=17, psn_rec=9, alpha=3)],
            counters=jobs_pb2.JobCounters(data=100, marks=2),
        ),
        jobs_pb2.SwitchJobState(switch="tor2", error="does not answer"),
    ]
)


def watched(controller: FakeController, *arguments: str) -> list[str]:
    """What a watch prints of four events, until it is interrupted."""
    for event in (
        jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SNAPSHOT, job=leased()),
        jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SYNCED),
        jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_STATE, job=job(), state=STATE),
        jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_EXPIRED, job=job()),
    ):
        controller.events.put(event)
    process = Running(controller, "job", "watch", *arguments)
    lines = [process.stdout.readline().rstrip("\n") for _ in range(4)]
    status, _, errors = process.end(signal.SIGINT)
    assert (status, "Traceback" in errors) == (130, False), errors
    return lines


def test_watch_prints_a_line_per_event_and_switch(controller: FakeController) -> None:
    assert watched(controller, "resnet", "--state", "500ms", "--tenant", "research") == [
        "snapshot resnet (1): 2 of 2 in sync, lease 9m 58s",
        "state resnet (1) tor1: block 4 step_min 17 psn_rec 9 alpha 3; data 100 marks 2 "
        "red_marks 0 corrections 0 advances 0",
        "state resnet (1) tor2: does not answer",
        "expired resnet (1): 2 of 2 in sync",
    ]
    (request,) = controller.asked("Jobs.Watch")
    assert (request.state_interval_ms, request.tenant) == (500, "research")
    assert [ref.name for ref in request.jobs] == ["resnet"]


def test_watch_prints_json_lines(controller: FakeController) -> None:
    events = [json.loads(line) for line in watched(controller, "--json")]
    assert [event["kind"] for event in events] == ["snapshot", "synced", "state", "expired"]
    assert events[0]["job"]["name"] == "resnet"
    assert events[2]["state"][0]["blocks"][0]["step_min"] == 17


def plan() -> jobs_pb2.PlanResponse:
    def link(src: str, dst: str, after: int, ecmp: float) -> jobs_pb2.PlanLink:
        return jobs_pb2.PlanLink(
            src=src, dst=dst, rate_bps=10**10, edges_after=after, edges_ecmp=ecmp,
            load_after=after, load_ecmp=ecmp,
        )  # fmt: skip

    hops = [jobs_pb2.PathHop(switch="tor1", port=11), jobs_pb2.PathHop(switch="spine1", port=2)]
    hops.append(jobs_pb2.PathHop(switch="tor2", port=1))
    return jobs_pb2.PlanResponse(
        paths=[jobs_pb2.PlannedPath(src="h1", dst="h3", hops=hops)],
        links=[
            link("tor1", "spine1", 1, 1.5), link("tor1", "spine2", 1, 0.5),
            link("spine1", "tor2", 1, 1.5), link("spine2", "tor2", 0, 0),
        ],
        inter_rack_edges=2, intra_rack_edges=3, max_load=1, bound=1, ecmp_max_load=1.5, gain=1.5,
        moved_jobs=["old"],
    )  # fmt: skip


def test_plan_explains_links_and_gain(controller: FakeController, tmp_path: Path) -> None:
    controller.answers["Jobs.Plan"] = plan()
    drawing = tmp_path / "plan.svg"
    result = run("job", "plan", *RING, "--rebalance", "--plot", str(drawing), at=controller)
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[:3] == [
        "job plan: 2 edges between racks, 3 within",
        "fullest link: 1 (the least that any plan can reach); under ECMP 1.5 in the mean: the "
        "plan's is 1.5 times emptier",
        "jobs that would move: old",
    ]
    bars = [line.split() for line in lines if ">" in line]
    assert [bar[:6] for bar in bars] == [
        ["spine1", ">", "tor2", "0", "1", "1.5"],
        ["tor1", ">", "spine1", "0", "1", "1.5"],
        ["tor1", ">", "spine2", "0", "1", "0.5"],
    ]
    assert ["spine1", "spine2"] in [line.split() for line in lines]
    assert ["tor1", "1/0", "1/0"] in [line.split() for line in lines]
    assert ["tor2", "0/1", "0/0"] in [line.split() for line in lines]
    assert "<svg" in drawing.read_text()
    (request,) = controller.asked("Jobs.Plan")
    assert (request.spec.name, request.rebalance) == ("plan", True)
    data = read("job", "plan", "resnet", at=controller)
    assert sorted(data) == [
        "bound", "ecmp_max_load", "gain", "inter_rack_edges", "intra_rack_edges", "links",
        "max_load", "moved_jobs", "paths", "reason",
    ]  # fmt: skip
    assert controller.asked("Jobs.Plan")[1].job.name == "resnet"


def test_plan_says_why_there_is_none(controller: FakeController) -> None:
    controller.answers["Jobs.Plan"] = jobs_pb2.PlanResponse(
        inter_rack_edges=2, reason="ECMP was asked for"
    )
    assert "no plan: ECMP was asked for" in run("job", "plan", "resnet", at=controller).stdout
    controller.answers["Jobs.Plan"] = jobs_pb2.PlanResponse(intra_rack_edges=2)
    assert "no edge leaves its rack" in run("job", "plan", "resnet", at=controller).stdout
    empty = run("job", "plan", "resnet", "--plot", "/tmp/none.svg", at=controller)
    assert (empty.exit_code, "nothing to draw" in empty.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "no job; give the name of a live one"),
        (("resnet", *RING), "both the live job 'resnet' and options"),
        (("resnet", "--name", "b"), "both the live job 'resnet' and options"),
        ((*RING, "--plot", "plan.doc"), "name a file that ends in .svg, .png, .pdf"),
    ],
)
def test_plan_of_nothing_or_of_two_is_refused(arguments: tuple[str, ...], text: str) -> None:
    result = run("job", "plan", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_rebalance_says_what_moves(controller: FakeController) -> None:
    controller.answers["Jobs.Rebalance"] = jobs_pb2.RebalanceResponse(
        moved_jobs=["a", "b"], max_load_before=3, max_load_after=2
    )
    result = run("job", "rebalance", "--dry-run", at=controller)
    assert result.stdout == "jobs that would move: a, b; load of the fullest link 3 -> 2\n"
    assert read("job", "rebalance", at=controller) == {
        "dry_run": False, "moved_jobs": ["a", "b"], "max_load_before": 3, "max_load_after": 2,
    }  # fmt: skip
    assert [one.dry_run for one in controller.asked("Jobs.Rebalance")] == [True, False]


def test_release_of_another_generation_is_the_controllers_to_refuse(
    controller: FakeController,
) -> None:
    stale = problem("STALE_GENERATION", "job 'resnet' has generation 4, not 3", "job.generation")
    controller.refusals["Jobs.Release"] = [(grpc.StatusCode.FAILED_PRECONDITION, "", stale)]
    result = run("job", "release", "resnet", "--generation", "3", at=controller)
    assert (result.exit_code, result.stderr) == (
        1, "error: job 'resnet' has generation 4, not 3\n",
    )  # fmt: skip
    assert controller.asked("Jobs.Release")[0].job.generation == 3


def test_environment_tells_a_job_its_tags(controller: FakeController) -> None:
    spec = jobs_pb2.JobSpec(
        name="resnet", tag=jobs_pb2.Tag(carrier=jobs_pb2.TAG_CARRIER_SPORT, value=3)
    )
    tagged = job(
        spec=spec, generation=9,
        parameters=parameters(step_bits=12, job_bits=2, packets_per_step=256),
    )  # fmt: skip
    controller.answers["Jobs.Get"] = jobs_pb2.GetResponse(job=tagged)
    expected = {
        "RINGSTEP_JOB_ID": "1",
        "RINGSTEP_JOB_NAME": "resnet",
        "RINGSTEP_GENERATION": "9",
        "RINGSTEP_TAG_BASE": "0xC000",
        "RINGSTEP_TAG_STEP_BITS": "12",
        "RINGSTEP_TAG_JOB_BITS": "2",
        "RINGSTEP_TAG_JOB": "3",
        "RINGSTEP_PROGRESS_MODE": "anchored",
        "RINGSTEP_PACKETS_PER_STEP": "256",
        "RINGSTEP_CONTROLLER": controller.target,
    }
    assert read("job", "env", "resnet", at=controller) == expected
    shell = run("job", "env", "resnet", at=controller).stdout
    assert shell.splitlines() == [f"export {name}={value}" for name, value in expected.items()]
    dotenv = run("job", "env", "resnet", "--format", "dotenv", at=controller).stdout
    assert dotenv.splitlines() == [f"{name}={value}" for name, value in expected.items()]


def test_environment_names_tags_elsewhere_and_ultra_ethernet(controller: FakeController) -> None:
    dscp = jobs_pb2.JobSpec(name="a", tag=jobs_pb2.Tag(carrier=jobs_pb2.TAG_CARRIER_DSCP, value=5))
    controller.answers["Jobs.Get"] = jobs_pb2.GetResponse(job=job(spec=dscp))
    variables = read("job", "env", "a", at=controller)
    assert (variables["RINGSTEP_TAG_DSCP"], variables["RINGSTEP_TAG_JOB"]) == ("5", "0")
    uec = jobs_pb2.JobSpec(name="a", uec_job_ids=[7, 8])
    controller.answers["Jobs.Get"] = jobs_pb2.GetResponse(job=job(spec=uec))
    assert read("job", "env", "a", at=controller)["RINGSTEP_UEC_JOB_ID"] == "7,8"


@pytest.mark.parametrize("command", ["renew", "update", "watch", "plan", "rebalance", "env"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = run("job", command, "--help")
    assert result.exit_code == 0
    assert f"Example: ringstep job {command}" in " ".join(result.stdout.split())
