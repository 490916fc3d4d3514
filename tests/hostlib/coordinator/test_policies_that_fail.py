"""A policy may hang, raise, be slow or answer nonsense: NCCL is left alone, and the job goes on."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ringstep.hostlib.coordinator.control import ControlError
from ringstep.hostlib.coordinator.policies import make, names
from ringstep.hostlib.coordinator.policy import CallKey, Options, Policy, PolicyError, Sample
from ringstep.hostlib.coordinator.skeleton import Settings
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

Make = Callable[..., Any]
DECIDED = ((Algo.RING, Proto.LL), 5)
NCCLS = ((Algo.TREE, Proto.LL), 0)
QUICK = Settings(policy_limit_s=0.3)


class Puppet:
    """Does in observe() and process() what the test says."""

    name = "puppet"
    static = False

    def __init__(self) -> None:
        self.version = 1
        self.observing: Callable[[Sample], Any] = lambda sample: None
        self.processing: Callable[[CallKey], Any] = lambda key: Decision(Algo.RING, Proto.LL, 5)
        self.samples: list[Sample] = []
        self.keys: list[CallKey] = []

    def observe(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.observing(sample)

    def process(self, key: CallKey) -> Any:
        self.keys.append(key)
        return self.processing(key)


@pytest.fixture
def puppets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Puppet]]:
    """Puppets that the factory `ringstep_puppet:new` makes, newest last."""
    made: list[Puppet] = []
    module = types.ModuleType("ringstep_puppet")

    def new(options: Options) -> Puppet:
        made.append(Puppet())
        return made[-1]

    module.new = new  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    module.broken = lambda options: 1 / 0  # type: ignore[attr-defined]
    module.useless = lambda options: object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ringstep_puppet", module)
    yield made
    for puppet in made:
        puppet.observing = puppet.processing = lambda _: None


def test_warm_up_and_cooldown(start: Make, make_ranks: Make, puppets: list[Puppet]) -> None:
    start("ringstep_puppet:new")
    ranks = make_ranks(2)
    ranks.run_until(DECIDED)
    (puppet,) = puppets
    assert puppet.keys
    states = [s.state.name for s in puppet.samples]
    assert states[:8] == ["WARMUP"] * 8
    puppet.processing = lambda key: Decision(Algo.RING, Proto.SIMPLE, 6)
    puppet.version += 1
    ranks.step()
    ranks.run_until(((Algo.RING, Proto.SIMPLE), 6))
    for _ in range(10):
        ranks.step()
    before = len(puppet.keys)
    assert before >= 2


def test_samples_tell_what_ran(
    start: Make, make_ranks: Make, puppets: list[Puppet], until: Make
) -> None:
    start("ringstep_puppet:new")
    ranks = make_ranks(3)
    ranks.run_until(DECIDED)
    (puppet,) = puppets
    until(lambda: [s for s in puppet.samples if s.epoch == 1 and s.decided], ranks.step)
    last = next(s for s in puppet.samples if s.epoch == 1 and s.decided)
    assert last.decision == Decision(Algo.RING, Proto.LL, 5)
    assert set(last.duration_ns) == {0, 1, 2}
    assert last.max_ns == last.min_ns == 4001
    assert last.missing == frozenset()
    assert last.key.bytes == 1 << 20
    assert last.key.n_ranks == 3
    assert last.ran.n_channels == 2
    assert last.gpu is None
    assert [s.coll_seq for s in puppet.samples] == list(range(len(puppet.samples)))


@pytest.mark.parametrize("where", ["observing", "processing"])
@pytest.mark.parametrize("how", ["raises", "hangs", "slow"])
def test_a_policy_that_fails_is_bypassed_and_can_be_resumed(
    start: Make, make_ranks: Make, puppets: list[Puppet], until: Make, where: str, how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    running = start("ringstep_puppet:new", settings=QUICK)
    ranks = make_ranks(2)
    ranks.run_until(DECIDED)
    free = threading.Event()

    def fail(_: Any) -> None:
        if how == "raises":
            raise ValueError("no idea")
        free.wait(None if how == "hangs" else 0.5)

    setattr(puppets[0], where, fail)
    puppets[0].version += 1
    until(lambda: running.status()["fault"], ranks.step)
    ranks.run_until(NCCLS)
    said = [r.message for r in caplog.records if "NCCL is left alone" in r.message]
    assert len(said) == 1
    assert ("failed: ValueError: no idea" in said[0]) == (how == "raises")
    for _ in range(20):
        assert ranks.step() == [NCCLS] * 2
    running.ask(do="bypass", on=False)
    assert len(puppets) == 2
    ranks.run_until(DECIDED)
    free.set()
    assert running.status()["fault"] is None


@pytest.mark.parametrize(
    "answer",
    ["ring", 7, Decision(Algo.RING, Proto.LL, 99)],
)
def test_nonsense_is_a_failure(
    start: Make, make_ranks: Make, puppets: list[Puppet], until: Make, answer: Any
) -> None:
    running = start("ringstep_puppet:new")
    ranks = make_ranks(2)
    ranks.step()
    puppets[0].processing = lambda key: answer
    until(lambda: running.status()["fault"], ranks.step)
    assert running.status()["bypass"] is True
    assert ranks.step() == [NCCLS] * 2


def test_a_slow_policy_loses_the_oldest_samples(
    start: Make, make_ranks: Make, puppets: list[Puppet], until: Make
) -> None:
    running = start("ringstep_puppet:new", settings=Settings(policy_limit_s=30))
    ranks = make_ranks(1)
    free = threading.Event()
    ranks.step()
    puppets[0].observing = lambda sample: free.wait()
    until(
        lambda: running.status()["samples_dropped"] > 0, lambda: [ranks.step() for _ in range(50)]
    )
    free.set()
    assert running.status()["fault"] is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fast", "choose nccl, fixed, autoccl, dynamic"),
        ("", "choose nccl"),
        ("nccl:x", "takes nothing after a colon"),
        ("fixed", "needs a table: fixed:FILE"),
        ("fixed:/none.csv", "/none.csv: No such file"),
        ("no_such_module:make", "there is no module no_such_module"),
        ("ringstep_puppet:none", "ringstep_puppet has no function none"),
        ("ringstep_puppet:number", "ringstep_puppet has no function number"),
        ("ringstep_puppet:broken", "cannot be made: ZeroDivisionError"),
        ("ringstep_puppet:useless", "its factory's answer has no observe()"),
        ("os; rm:x", "choose nccl"),
    ],
)
def test_policies_that_cannot_be_made(puppets: list[Puppet], name: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        make(name, Options())
    assert said in str(caught.value)


def test_the_interface_is_two_functions() -> None:
    functions = [
        name for name in vars(Policy)
        if not name.startswith("_") and callable(getattr(Policy, name, None))
    ]  # fmt: skip
    assert functions == ["observe", "process"]
    assert names() == ("nccl", "fixed", "autoccl", "dynamic")


def test_switching_to_a_policy_that_cannot_be_made_changes_nothing(
    start: Make, make_ranks: Make, puppets: list[Puppet]
) -> None:
    running = start("ringstep_puppet:new")
    ranks = make_ranks(2)
    ranks.run_until(DECIDED)
    with pytest.raises(ControlError, match="ZeroDivisionError"):
        running.ask(do="policy", name="ringstep_puppet:broken")
    assert running.status()["policy"] == "puppet"
    assert ranks.step() == [DECIDED] * 2


def test_collectives_of_all_kinds_have_keys_of_their_own(
    start: Make, make_ranks: Make, puppets: list[Puppet], until: Make
) -> None:
    running = start("ringstep_puppet:new")
    ranks = make_ranks(2)
    (puppet,) = puppets
    ranks.run_until(DECIDED)
    gather = {"collective": Collective.ALL_GATHER, "n_bytes": 1 << 16}
    ranks.run_until(DECIDED, **gather)
    assert {(k.collective, k.size_class) for k in puppet.keys} == {
        (Collective.ALL_REDUCE, 20), (Collective.ALL_GATHER, 16),
    }  # fmt: skip
    assert running.comm()["epoch"] >= 2
