"""The table file of the policy `fixed`: what it means, what is refused, and what is right."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.hostlib.coordinator.fixed import (
    Fixed,
    TableError,
    by_place,
    format_table,
    make,
    read_table,
)
from ringstep.hostlib.coordinator.policy import CallKey, Options, PolicyError
from ringstep.hostlib.shm import Decision, size_class
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto

HEADER = "collective,bytes,algorithm,protocol,channels,chunk\n"
AR = Collective.ALL_REDUCE


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


def asked(policy: Fixed, n_bytes: int, collective: Collective = AR) -> Decision | None:
    key = CallKey("c", collective, size_class(n_bytes), n_bytes, 2, 1, frozenset())
    return policy.process(key)


def test_intervals_hold_their_lower_end_and_not_their_upper_end(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "# for the lab\n" + HEADER + "AllReduce, ..64KiB, Tree, LL, -1,\n\n"
        "all_reduce,64KiB..4GiB,ring,ll128,4,-1\nallreduce,4GiB..16GiB,ring,simple,64,64MiB\n"
        "reduce_scatter,0..,PAT,Simple,,\n",
    )
    policy = Fixed(read_table(path))
    tree = Decision(Algo.TREE, Proto.LL, state=EntryState.FIXED)
    assert asked(policy, 0) == asked(policy, 1) == asked(policy, (64 << 10) - 1) == tree
    middle = Decision(Algo.RING, Proto.LL128, 4, state=EntryState.FIXED)
    assert asked(policy, 64 << 10) == asked(policy, (4 << 30) - 1) == middle
    last = Decision(Algo.RING, Proto.SIMPLE, 64, 64 << 20, state=EntryState.FIXED)
    assert asked(policy, 4 << 30) == asked(policy, (16 << 30) - 1) == last
    assert asked(policy, 16 << 30) is None
    found = asked(policy, (1 << 64) - 1, Collective.REDUCE_SCATTER)
    assert found is not None
    assert found.algo is Algo.PAT
    assert asked(policy, 1 << 20, Collective.BROADCAST) is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("alltoall,..,ring,ll", "collective 'alltoall': choose broadcast, reduce, allgather"),
        ("allreduce,..,rign,ll", "algorithm 'rign': choose tree, ring"),
        ("allreduce,..,ring,ll64", "protocol 'll64': choose ll, ll128, simple"),
        ("allgather,..,tree,ll", "NCCL has it for allreduce only"),
        ("allreduce,1000..,ring,ll", "nearest are 512 and 1KiB"),
        ("allreduce,..3MiB,ring,ll", "nearest are 2MiB and 4MiB"),
        ("allreduce,64K..,ring,ll", "no unit K; write 64KiB"),
        ("allreduce,1mb..,ring,ll", "no unit mb; write 1MiB"),
        ("allreduce,1.5MiB..,ring,ll", "write bytes, or a number with B, KiB"),
        ("allreduce,-1..,ring,ll", "write bytes, or a number"),
        ("allreduce,1MiB,ring,ll", "write an interval, 64KiB..1MiB"),
        ("allreduce,1MiB-2MiB,ring,ll", "write an interval"),
        ("allreduce,2MiB..1MiB,ring,ll", "the lower end comes first"),
        ("allreduce,1MiB..1MiB,ring,ll", "no size is in it"),
        ("allreduce,..1,ring,ll", "smallest upper end is 2"),
        ("allreduce,..32EiB,ring,ll", "sizes end at 16EiB; leave the end open"),
        ("allreduce,..,ring,ll,0", "channels '0': 1 to 64, or -1"),
        ("allreduce,..,ring,ll,65", "channels '65': 1 to 64"),
        ("allreduce,..,ring,ll,two", "channels 'two': 1 to 64"),
        ("allreduce,..,ring,ll,²", "channels '²': 1 to 64"),
        ("allreduce,..,ring,ll,4,1000", "nearest is 16KiB"),
        ("allreduce,..,ring,ll,4,18000", "nearest is 16KiB"),
        ("allreduce,..,ring,ll,4,1GiB", "nearest is 64MiB"),
        ("allreduce,..,ring", "protocol is missing; to leave a size to NCCL"),
        ("allreduce,..,-1,ll", "algorithm is missing"),
        ("allreduce,,ring,ll", "bytes is missing"),
        ("allreduce,..,ring,ll,4,,7", "7 cells under 6 columns"),
        ('allreduce,"..,ring,ll', "unexpected end of data"),
    ],
)  # fmt: skip
def test_mistakes_are_said_with_their_line(tmp_path: Path, row: str, said: str) -> None:
    path = written(tmp_path, HEADER + "\nbroadcast,..,ring,ll\n" + row + "\n")
    with pytest.raises(TableError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty; the first line is collective,bytes"),
        ("# nothing\n", "empty"),
        ("allreduce,..,ring,ll\n", ":1: column 'allreduce': the first line is collective"),
        ("collective,bytes,algorithm\n", ":1: column 'protocol' is missing"),
        ("collective,bytes,bytes,algorithm,protocol\n", "column 'bytes' is there twice"),
        (HEADER + "allreduce,..1MiB,ring,ll\nallreduce,64KiB..2MiB,ring,ll\n",
         ":3: allreduce of 64KiB is decided in line 2 already"),
        (HEADER + "x" * (1 << 20), "more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_files_that_are_no_table(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TableError) as caught:
        read_table(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="No such file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(HEADER.encode() + b"\xff\xfe\n")
    with pytest.raises(TableError, match="not UTF-8 text at byte"):
        read_table(tmp_path / "bytes.csv")
    with pytest.raises(TableError, match="Is a directory"):
        read_table(tmp_path)
    with pytest.raises(PolicyError, match="fixed:FILE"):
        make(Options())


_DECISIONS = st.dictionaries(
    st.tuples(st.sampled_from(Collective), st.integers(0, 63)),
    st.builds(
        Decision, st.sampled_from([a for a in Algo if a is not Algo.TREE]), st.sampled_from(Proto),
        st.integers(0, 64), st.sampled_from([0, 16 << 10, 20 << 10, 1 << 20, 64 << 20]),
        state=st.just(EntryState.FIXED),
    ),
)  # fmt: skip


@given(_DECISIONS)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    decisions: dict[tuple[Collective, int], Decision],
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(format_table(decisions))
    assert by_place(read_table(path)) == decisions


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(HEADER + text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(TableError):
        read_table(path)
