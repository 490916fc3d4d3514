"""Lookups against a model that looks at every entry, for every match kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.softswitch import tables
from ringstep.softswitch.tables import (
    ActionCall,
    ActionInfo,
    ConstTable,
    Entry,
    EntryExists,
    EntryNotFound,
    Exact,
    InvalidEntry,
    KeySpec,
    Lpm,
    Match,
    Range,
    Table,
    TableFull,
    Ternary,
)

WIDTH = 6
TOP = (1 << WIDTH) - 1
ACTIONS = [ActionInfo("set", (("v", 16),)), ActionInfo("nothing")]


def table(*kinds: str, width: int = WIDTH, **options: object) -> Table:
    keys = [KeySpec(f"k{i}", kind, width) for i, kind in enumerate(kinds)]
    default = ActionCall("nothing")
    return Table("t", keys, ACTIONS, default=default, **options)  # type: ignore[arg-type]


def entry(match: tuple[Match, ...], value: int = 0, priority: int = 0) -> Entry:
    return Entry(match, priority, ActionCall("set", (value,)))


def matches(match: Match, value: int) -> bool:
    if isinstance(match, Exact):
        return match.value == value
    if isinstance(match, Lpm):
        return match.value >> (WIDTH - match.prefix_len) == value >> (WIDTH - match.prefix_len)
    if isinstance(match, Ternary):
        return value & match.mask == match.value
    return match.low <= value <= match.high


values = st.integers(0, TOP)
match_of = {
    "exact": values.map(Exact),
    "lpm": st.tuples(values, st.integers(0, WIDTH)).map(
        lambda p: Lpm(p[0] >> (WIDTH - p[1]) << (WIDTH - p[1]), p[1])
    ),
    "ternary": st.tuples(values, values).map(lambda p: Ternary(p[0] & p[1], p[1])),
    "range": st.tuples(values, values).map(lambda p: Range(min(p), max(p))),
}
shapes = st.sampled_from(
    [
        ("exact",),
        ("exact", "exact"),
        ("lpm",),
        ("exact", "lpm"),
        ("lpm", "exact", "exact"),
        ("ternary",),
        ("ternary", "exact"),
        ("lpm", "ternary"),
        ("ternary", "ternary", "ternary"),
        ("range",),
        ("range", "exact"),
        ("range", "ternary", "lpm"),
    ]
)


def expected(made: Table, model: dict[tuple[tuple[Match, ...], int], int], key: tuple[int, ...]):
    """The set of values any best entry would give; empty on a miss."""
    hits = [
        (match, priority, value)
        for (match, priority), value in model.items()
        if all(matches(m, k) for m, k in zip(match, key, strict=True))
    ]
    if not hits:
        return set()

    def rank(hit: tuple[tuple[Match, ...], int, int]) -> int:
        if made.requires_priority:
            return hit[1]
        return sum(m.prefix_len for m in hit[0] if isinstance(m, Lpm))

    best = max(rank(h) for h in hits)
    return {value for match, priority, value in hits if rank((match, priority, value)) == best}


@settings(max_examples=250, deadline=None)
@given(shapes, st.data())
def test_lookup_agrees_with_looking_at_every_entry(
    shape: tuple[str, ...], data: st.DataObject
) -> None:
    made = table(*shape)
    model: dict[tuple[tuple[Match, ...], int], int] = {}
    keys = st.tuples(*[values] * len(shape))
    for number in range(data.draw(st.integers(1, 25))):
        change = data.draw(st.sampled_from(["insert", "insert", "modify", "delete", "look"]))
        if change == "insert":
            match = tuple(data.draw(match_of[kind]) for kind in shape)
            priority = data.draw(st.integers(1, 4)) if made.requires_priority else 0
            if (match, priority) in model:
                with pytest.raises(EntryExists):
                    made.insert(entry(match, number, priority))
            else:
                made.insert(entry(match, number, priority))
                model[match, priority] = number
        elif change != "look" and model:
            match, priority = data.draw(st.sampled_from(sorted(model, key=repr)))
            if change == "modify":
                made.modify(entry(match, 1000 + number, priority))
                model[match, priority] = 1000 + number
            else:
                made.delete(match, priority)
                del model[match, priority]
        for key in data.draw(st.lists(keys, max_size=3)):
            record = made.lookup(key[0] if len(key) == 1 else key)
            wanted = expected(made, model, key)
            if wanted:
                assert record[0] == 0
                assert record[1] in wanted
            else:
                assert record is made.default_record[0]
    assert {(e.match, e.priority): e.action.args[0] for e in made.entries()} == model  # type: ignore[union-attr]


def test_the_higher_priority_number_wins() -> None:
    made = table("ternary")
    made.insert(entry((Ternary(0, 0),), 1, priority=1))
    made.insert(entry((Ternary(8, 8),), 2, priority=20))
    made.insert(entry((Ternary(9, 15),), 3, priority=10))
    assert made.lookup(9)[1] == 2
    assert made.lookup(1)[1] == 1


def test_the_longest_prefix_wins() -> None:
    made = table("lpm", width=32)
    made.insert(entry((Lpm(0, 0),), 1))
    made.insert(entry((Lpm(0x0A000000, 8),), 2))
    made.insert(entry((Lpm(0x0A010000, 16),), 3))
    assert [made.lookup(a)[1] for a in (0x0B000000, 0x0A020304, 0x0A010203)] == [1, 2, 3]


def test_remembered_answers_end_with_the_entry_and_the_default() -> None:
    made = table("lpm")
    made.insert(entry((Lpm(0, 0),), 1))
    assert made.lookup(5)[1] == 1
    made.modify(entry((Lpm(0, 0),), 2))
    assert made.lookup(5)[1] == 2
    made.delete((Lpm(0, 0),))
    assert made.lookup(5)[0] == 1
    made.set_default(ActionCall("set", (7,)))
    assert made.lookup(5) == (0, 7)


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MEMO_LIMIT", 8)
    made = table("ternary")
    made.insert(entry((Ternary(0, 0),), 1, priority=1))
    for key in range(TOP):
        made.lookup(key)
        assert len(made.memo) <= 8


def test_an_answer_computed_during_a_change_is_not_remembered() -> None:
    made = table("lpm")
    made.insert(entry((Lpm(0, 0),), 1))
    find = made._find

    def find_while_another_thread_deletes(key: tables.LookupKey) -> tables.Record | None:
        answer = find(key)
        made.delete((Lpm(0, 0),))
        return answer

    made._find = find_while_another_thread_deletes  # type: ignore[method-assign]
    made.search(5)
    made._find = find  # type: ignore[method-assign]
    assert made.search(5) is made.default_record[0]


@pytest.mark.parametrize(
    ("shape", "bad", "reason"),
    [
        (("exact",), entry((Lpm(0, 0),)), "is exact, the entry gives lpm"),
        (("exact",), entry((Exact(64),)), "does not fit in 6 bits"),
        (("exact",), entry(()), "matches on 1 fields, the entry gives 0"),
        (("exact",), entry((Exact(1),), priority=3), "takes no priority"),
        (("lpm",), entry((Lpm(1, 3),)), "bits below its prefix"),
        (("lpm",), entry((Lpm(0, 7),)), "prefix length 7 is not in 0..6"),
        (("ternary",), entry((Ternary(3, 1),), priority=1), "bits outside its mask"),
        (("ternary",), entry((Ternary(1, 1),)), "priority above 0 is required"),
        (("range",), entry((Range(4, 3),), priority=1), "range 4..3 is empty"),
        ((), entry(()), "has no match field"),
        (("exact",), entry((Exact(1),), value=1 << 16), "argument 'v'.*does not fit in 16 bits"),
        (("exact",), Entry((Exact(1),), 0, ActionCall("set")), "takes 1 arguments, not 0"),
        (("exact",), Entry((Exact(1),), 0, ActionCall("gone")), "'gone' is not one of"),
    ],
)
def test_entries_that_do_not_fit_are_refused(
    shape: tuple[str, ...], bad: Entry, reason: str
) -> None:
    made = table(*shape)
    with pytest.raises(InvalidEntry, match=reason):
        made.insert(bad)
    assert made.entries() == []


def test_limits_and_constants() -> None:
    made = table("exact", max_size=1, default_is_const=True)
    made.insert(entry((Exact(1),)))
    with pytest.raises(TableFull, match="all 1 entries"):
        made.insert(entry((Exact(2),)))
    with pytest.raises(EntryNotFound):
        made.delete((Exact(2),))
    with pytest.raises(EntryNotFound):
        made.modify(entry((Exact(2),)))
    with pytest.raises(ConstTable):
        made.set_default(ActionCall("nothing"))
    fixed = table("exact", default_action_is_const=True)
    with pytest.raises(ConstTable, match="only its arguments"):
        fixed.set_default(ActionCall("set", (1,)))


def test_clear_goes_back_to_the_state_after_load() -> None:
    made = table("lpm", direct_counter="c")
    made.insert(entry((Lpm(0, 0),), 1))
    made.set_default(ActionCall("set", (7,)))
    made.lookup(5)
    made.clear()
    assert made.entries() == []
    assert made.default == ActionCall("nothing")
    assert made.lookup(5)[0] == 1
