"""The live view: its model without a terminal, its screen on a recorded one, the command."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from commands import run
from fake_controller import FakeController, job, parameters
from rich.console import Console

from ringstep.controller.topmodel import Row, SortKey, TopModel
from ringstep.controller.topview import Frame, rate_text, render
from ringstep.controller.v1 import jobs_pb2

SNAPSHOT = jobs_pb2.JOB_EVENT_KIND_SNAPSHOT
STATE = jobs_pb2.JOB_EVENT_KIND_STATE
SYNCED = jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SYNCED)


def block(step: int, psn: int = 0, alpha: int = 1, number: int = 0, generation: int = 1) -> Any:
    return jobs_pb2.BlockState(
        block=number, generation=generation, step_min=step, psn_rec=psn, alpha=alpha
    )


def reading(
    at_ms: int, *blocks: Any, of: jobs_pb2.Job | None = None, switch: str = "tor1", **counters: int
) -> jobs_pb2.JobEvent:
    said = jobs_pb2.SwitchJobState(
        switch=switch,
        blocks=blocks,
        read_unix_ms=at_ms,
        counters=jobs_pb2.JobCounters(**counters),
    )
    state = jobs_pb2.StateResponse(job=of or job(), switches=[said])
    return jobs_pb2.JobEvent(kind=STATE, state=state)


def model(*events: jobs_pb2.JobEvent, of: jobs_pb2.Job | None = None) -> TopModel:
    made = TopModel()
    made.apply(jobs_pb2.JobEvent(kind=SNAPSHOT, job=of or job()), 0.0)
    made.apply(SYNCED, 0.0)
    for event in events:
        made.apply(event, 0.0)
    return made


def at_tor1(made: TopModel, now_s: float = 0.0) -> Row:
    (row,) = [row for row in made.rows(now_s) if row.switch == "tor1"]
    return row


def test_rates_are_differences_over_the_time_between_two_readings() -> None:
    first = reading(10_000, block(100), data=1000, marks=10, red_marks=4, corrections=1)
    second = reading(
        12_000, block(150, 9, 3), data=5000, marks=30, red_marks=4, corrections=3, advances=50
    )
    before = at_tor1(model(first))
    assert (before.step_min, before.steps_per_s, before.data_pps) == (100, None, None)
    row = at_tor1(model(first, second))
    assert (row.step_min, row.psn_rec, row.alpha) == (150, 9, 3)
    assert (row.steps_per_s, row.data_pps, row.marks_per_s) == (25, 2000, 10)
    assert (row.red_marks_per_s, row.corrections_per_s) == (0, 1)


def test_port_that_is_furthest_behind_is_shown_also_where_steps_wrap() -> None:
    size = 1 << 14
    blocks = (block(2, 5, 9, 1), block(size - 1, 7, 4, 2), block(size - 1, 6, 1, 3))
    row = at_tor1(model(reading(1, *blocks)))
    assert (row.step_min, row.psn_rec, row.alpha) == (size - 1, 6, 9)


def test_steps_are_counted_across_the_wrap() -> None:
    size = 1 << 14
    row = at_tor1(model(reading(0, block(size - 5)), reading(1000, block(5))))
    assert row.steps_per_s == 10


def test_steps_that_may_have_gone_round_are_taken_from_the_counter() -> None:
    """With two step bits (a pool of four QPs) step_min goes round all the time."""
    small = job(parameters=parameters(step_bits=2, job_bits=12))
    first = reading(0, block(1), block(1, number=1), of=small)
    second = reading(1000, block(1), block(1, number=1), of=small, advances=800)
    assert at_tor1(model(first, second, of=small)).steps_per_s == 400


def test_counters_that_began_anew_give_no_rates_until_the_reading_after() -> None:
    """A switch was restarted, or its pipeline loaded again."""
    made = model(reading(0, block(9), data=5000), reading(1000, block(10), data=10))
    assert at_tor1(made).data_pps is None
    assert at_tor1(made).steps_per_s == 1
    made.apply(reading(2000, block(11), data=30), 0.0)
    assert at_tor1(made).data_pps == 20


def test_clock_that_was_set_back_gives_no_rates() -> None:
    row = at_tor1(model(reading(5000, block(9), data=1), reading(4000, block(10), data=2)))
    assert (row.steps_per_s, row.data_pps) == (None, None)


def test_same_reading_twice_changes_nothing() -> None:
    first, second = reading(0, block(1), data=0), reading(1000, block(2), data=100)
    assert at_tor1(model(first, second, second)).data_pps == 100


def test_block_of_an_earlier_job_is_not_taken_for_this_one() -> None:
    row = at_tor1(model(reading(0, block(100, generation=7))))
    assert (row.step_min, row.alpha) == (None, None)


def test_switch_that_could_not_be_read_says_why() -> None:
    said = jobs_pb2.SwitchJobState(switch="tor1", error="does not answer")
    state = jobs_pb2.StateResponse(job=job(), switches=[said])
    row = at_tor1(model(jobs_pb2.JobEvent(kind=STATE, job=job(), state=state)))
    assert (row.note, row.step_min, row.data_pps) == ("does not answer", None, None)


def test_lease_runs_down_between_readings() -> None:
    leased = job(lease_s=600, lease_remaining_ms=500_000)
    made = model(of=leased)
    assert at_tor1(made, 30.0).lease_left_s == 470
    assert at_tor1(made, 9999.0).lease_left_s == 0
    assert at_tor1(model()).lease_left_s is None


@pytest.mark.parametrize(
    "kind", [jobs_pb2.JOB_EVENT_KIND_RELEASED, jobs_pb2.JOB_EVENT_KIND_EXPIRED]
)
def test_job_that_is_gone_stays_gone(kind: Any) -> None:
    made = model()
    made.apply(jobs_pb2.JobEvent(kind=kind, job=job()), 0.0)
    made.apply(reading(0, block(1)), 0.0)
    assert (made.rows(0.0), made.jobs) == ([], 0)


def test_job_registered_anew_under_its_name_replaces_the_old_one() -> None:
    made = model(reading(0, block(1), data=1))
    made.apply(jobs_pb2.JobEvent(kind=SNAPSHOT, job=job(generation=2)), 0.0)
    assert [(row.generation, row.step_min) for row in made.rows(0.0)] == [(2, None), (2, None)]


def test_rates_are_there_after_two_readings_of_every_job() -> None:
    made = model()
    assert not made.has_rates()
    made.apply(reading(0), 0.0)
    assert not made.has_rates()
    made.apply(reading(1000), 0.0)
    assert made.has_rates()
    empty = TopModel()
    assert not empty.has_rates()
    empty.apply(SYNCED, 0.0)
    assert empty.has_rates()


def three_jobs() -> TopModel:
    made = TopModel()
    for number, alpha, left_ms in ((1, 5, 0), (2, 9, 50_000), (3, 7, 20_000)):
        one = job(f"job{number}", number, lease_s=60 if left_ms else 0, lease_remaining_ms=left_ms)
        del one.programming[1:]
        made.apply(jobs_pb2.JobEvent(kind=SNAPSHOT, job=one), 0.0)
        made.apply(reading(0, block(1, alpha=alpha), of=one), 0.0)
    return made


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (SortKey.JOB, [1, 2, 3]),
        (SortKey.SWITCH, [1, 2, 3]),
        (SortKey.ALPHA, [2, 3, 1]),
        (SortKey.LEASE, [3, 2, 1]),
        (SortKey.MARKS, [1, 2, 3]),
    ],
)
def test_rows_are_sorted(sort: SortKey, order: list[int]) -> None:
    made = three_jobs()
    assert [row.job_id for row in made.rows(0.0, sort)] == order
    assert [row.job_id for row in made.rows(0.0, sort, descending=True)] == order[::-1]
    assert [row.job_id for row in made.rows(0.0, only=["job2", "3"])] == [2, 3]


def test_job_without_rules_has_a_row_that_says_why() -> None:
    (row,) = model(of=job(programming=[], problem="host 'h9' is gone")).rows(0.0)
    assert (row.switch, row.phase, row.note) == ("-", "no rules", "host 'h9' is gone")


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"), (0.0, "0"), (0.25, "0.25"), (7.0, "7"), (123.4, "123"), (9999.0, "9999"),
        (12_345.0, "12.3k"), (999_900.0, "1000k"), (1_250_000.0, "1.25M"), (3e9, "3G"),
    ],
)  # fmt: skip
def test_rates_are_short(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text
    assert len(rate_text(rate)) <= 6


def screen(frame: Frame, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(render(frame))
    return [line.rstrip() for line in console.export_text().splitlines()]


def frame(made: TopModel, **changes: Any) -> Frame:
    values: dict[str, Any] = {
        "rows": made.rows(0.0),
        "jobs": made.jobs,
        "source": "127.0.0.1:9560",
        "sort": SortKey.JOB,
        "interval_s": 2.0,
    }
    return Frame(**(values | changes))


def test_screen_shows_a_row_per_job_and_switch() -> None:
    made = model(reading(0, block(7, 3, 2), data=0), reading(1000, block(8, 3, 2), data=50_000))
    lines = screen(frame(made), 120)
    assert "127.0.0.1:9560  1 jobs  2 switches  every 2 s  by job" in lines[0]
    assert lines[1].split() == [
        "job", "switch", "state", "step", "psn", "steps/s", "alpha", "marks/s", "RED/s", "corr/s",
        "data", "pkt/s", "lease",
    ]  # fmt: skip
    assert lines[2].split() == [
        "resnet", "tor1", "in", "sync", "8", "3", "1", "2", "0", "0", "0", "50k", "-",
    ]  # fmt: skip
    assert lines[3].split() == ["resnet", "tor2", "in", "sync", *["-"] * 9]


def test_screen_fits_any_size() -> None:
    made = TopModel()
    for number in range(1, 200):
        made.apply(jobs_pb2.JobEvent(kind=SNAPSHOT, job=job(f"job{number}", number)), 0.0)
    for height, width in ((5, 20), (10, 40), (24, 80), (50, 200)):
        lines = screen(frame(made, height=height, keys=True), width)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert "... 380 more rows" in screen(frame(made, height=23), 80)[-1]
    assert "no live jobs" in screen(frame(TopModel()), 80)[1]


def test_names_with_brackets_are_shown_as_they_are() -> None:
    """A switch's name is not markup."""
    odd = job(programming=[jobs_pb2.SwitchProgramming(switch="[/red]s1")])
    assert "[/red]s1" in "\n".join(screen(frame(model(of=odd)), 120))


# -- the command -----------------------------------------------------------------------------


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        fake.events.put(jobs_pb2.JobEvent(kind=SNAPSHOT, job=job()))
        fake.events.put(SYNCED)
        fake.events.put(reading(0, block(1), data=0))
        fake.events.put(reading(1000, block(5), data=100))
        yield fake


def test_once_prints_one_table_with_rates(controller: FakeController) -> None:
    result = run("top", "--once", "--interval", "60s", at=controller)
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines() if "tor1" in line]
    assert row.split() == [
        "resnet", "tor1", "in", "sync", "5", "0", "4", "1", "0", "0", "0", "100", "-",
    ]  # fmt: skip
    (request,) = controller.asked("Jobs.Watch")
    assert request.state_interval_ms == 60_000


def test_once_as_json_is_one_object(controller: FakeController) -> None:
    result = run("top", "--once", "--json", "--interval", "60s", "--job", "resnet", at=controller)
    data = json.loads(result.stdout)
    assert sorted(data) == ["jobs", "rows", "unix_ms"]
    assert sorted(data["rows"][0]) == [
        "alpha", "corrections_per_s", "data_pps", "generation", "job", "job_id", "lease_left_s",
        "marks_per_s", "note", "phase", "psn_rec", "red_marks_per_s", "step_min", "steps_per_s",
        "switch", "tenant",
    ]  # fmt: skip
    assert data["rows"][0]["steps_per_s"] == 4


def test_controller_that_cannot_stream_is_polled() -> None:
    with FakeController() as fake:
        fake.refuse_all = None
        fake.refusals["Jobs.Watch"] = [(grpc.StatusCode.UNIMPLEMENTED, "not yet", None)]
        fake.answers["Jobs.List"] = jobs_pb2.ListResponse(jobs=[job()])
        steps = iter(range(1, 1000))

        def state(_: object) -> jobs_pb2.StateResponse:
            said = jobs_pb2.SwitchJobState(switch="tor1", blocks=[block(next(steps))])
            return jobs_pb2.StateResponse(job=job(), switches=[said])

        fake.answers["Jobs.State"] = state
        result = run("top", "--once", "--json", "--interval", "200ms", at=fake)
        (row,) = [r for r in json.loads(result.stdout)["rows"] if r["switch"] == "tor1"]
        assert row["step_min"] >= 2
        assert row["steps_per_s"] > 0


def test_controller_that_refuses_ends_it_with_its_words() -> None:
    with FakeController() as fake:
        fake.refuse_all = (grpc.StatusCode.PERMISSION_DENIED, "a reader may not", None)
        result = run("top", "--once", at=fake)
    assert (result.exit_code, result.stderr) == (1, "error: a reader may not\n")


@pytest.mark.parametrize("value", ["0", "0.01", "fast"])
def test_interval_that_makes_no_sense_is_refused(value: str) -> None:
    assert run("top", "--interval", value).exit_code == 2


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"\x03", 130)])
def test_screen_is_left_as_it_was_by_q_and_ctrl_c(
    controller: FakeController, key: bytes, status: int
) -> None:
    """On a real terminal: the alternate screen is entered, and left again."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable, "-c", "from ringstep.cli.main import main; main()", "top",
            "--interval", "200ms", "--controller", controller.target,
        ],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: _control(theirs), env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    shown = b""
    pressed = False
    try:
        while True:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    part = os.read(ours, 65536)
                except OSError:
                    break  # The other end is closed: it ended.
                if not part:
                    break
                shown += part
            if not pressed and b"tor1" in shown:
                os.write(ours, b"srp" + key if key == b"q" else key)
                pressed = True
            if process.poll() is not None and not select.select([ours], [], [], 0)[0]:
                break
    finally:
        watchdog.cancel()
        process.kill()
        os.close(ours)
    assert process.wait() == status, shown.decode(errors="replace")
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in shown


def _control(terminal: int) -> None:
    """Make a terminal the controlling one, so that ctrl-C there is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
