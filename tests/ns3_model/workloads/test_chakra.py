"""Chakra execution traces: the wire format, joining the ranks, round trips, bad traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs protobuf: pip install 'ringstep-ns3[chakra]'")

from ringstep_ns3.workloads import (
    Collective,
    Compute,
    Group,
    Inner,
    Kind,
    ProgramOp,
    Send,
    Workload,
    WorkloadError,
    build,
    program,
    read_chakra,
    write_chakra,
)
from ringstep_ns3.workloads.chakra_schema import CommType, GlobalMetadata, Node, NodeType

# Written by hand from the protobuf encoding and et_def.proto, not by our own schema: metadata with
# version "0.0.4"; node 1 "c", COMP_NODE, duration 5 us; node 2 "ar", COMM_COLL_NODE, data_deps [1],
# is_cpu_op false, comm_type ALL_GATHER as int64, comm_size 1 MiB as uint64.
BY_HAND = bytes.fromhex(
    "07"  "0a05302e302e34"
    "09"  "0801" "120163" "1804" "3805"
    "3b"  "0802" "12026172" "1807" "2a0101"
    "520e" "0a0969735f6370755f6f70" "d80100"
    "520d" "0a09636f6d6d5f74797065" "4802"
    "520f" "0a09636f6d6d5f73697a65" "68808040"
)  # fmt: skip


def test_the_wire_format_is_that_of_the_published_schema(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"t.{rank}.et").write_bytes(BY_HAND)
    made = read_chakra(tmp_path / "t")
    assert made.operations == (
        Compute(ns=5000, label="c"),
        Collective(kind=Kind.ALL_GATHER, bytes=1 << 20, share=True, label="ar", after=(0,)),
    )
    assert made.ranks == 2
    assert program(made, 2)[1].bytes == 2 << 20


def test_compressed_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.0.et").write_bytes(gzip.compress(BY_HAND))
    assert len(read_chakra(tmp_path / "t").operations) == 2


def save(folder: Path, *ranks: list[Any]) -> Path:
    """Write nodes as traces; return their prefix."""
    for rank, nodes in enumerate(ranks):
        data = b""
        for message in (GlobalMetadata(version="1.0.0"), *nodes):
            payload = message.SerializeToString()
            size = len(payload)
            assert size < 1 << 14
            data += bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
            data += payload
        (folder / f"t.{rank}.et").write_bytes(data)
    return folder / "t"


def node(number: int, kind: NodeType, *deps: int, micros: int = 0, **attributes: Any) -> Any:
    made = Node(id=number, name=f"n{number}", type=kind, duration_micros=micros, ctrl_deps=deps)
    for name, value in attributes.items():
        if isinstance(value, list):
            made.attr.add(name=name).bool_list.values.extend(value)
        elif isinstance(value, str):
            made.attr.add(name=name, string_val=value)
        else:
            made.attr.add(name=name, int64_val=value)
    return made


def reduce(number: int, *deps: int, size: int = 64, **more: Any) -> Any:
    return node(
        number,
        NodeType.COMM_COLL_NODE,
        *deps,
        comm_type=CommType.ALL_REDUCE,
        comm_size=size,
        **more,
    )


def compute(number: int, *deps: int, micros: int = 1) -> Any:
    return node(number, NodeType.COMP_NODE, *deps, micros=micros)


def send(number: int, to: int, *deps: int, tag: int = 0, size: int = 9) -> Any:
    kind = NodeType.COMM_SEND_NODE
    return node(number, kind, *deps, comm_size=size, comm_dst=to, comm_tag=tag)


def receive(number: int, source: int, *deps: int, tag: int = 0, size: int = 9) -> Any:
    kind = NodeType.COMM_RECV_NODE
    return node(number, kind, *deps, comm_size=size, comm_src=source, comm_tag=tag)


def test_one_graph_at_every_rank_is_one_operation_with_a_time_per_rank(tmp_path: Path) -> None:
    ranks = [[compute(1, micros=3), compute(2, 1, micros=rank), reduce(3, 2)] for rank in range(3)]
    made = read_chakra(save(tmp_path, *ranks))
    assert made.operations == (
        Compute(ns=3000, label="n1"),
        Compute(ns=(0, 1000, 2000), label="n2", after=(0,)),
        Collective(kind=Kind.ALL_REDUCE, bytes=64, label="n3", after=(1,)),
    )


def test_different_graphs_keep_their_computations_apart(tmp_path: Path) -> None:
    made = read_chakra(
        save(tmp_path, [compute(1), reduce(2, 1)], [reduce(7), compute(8, 7, micros=2)])
    )
    assert made.operations == (
        Compute(ns=1000, ranks=(0,), label="n1"),
        Collective(kind=Kind.ALL_REDUCE, bytes=64, label="n7", after=(0,)),
        Compute(ns=2000, ranks=(1,), label="n8", after=(1,)),
    )


def test_a_ring_of_messages_is_no_cycle_although_receives_follow_sends(
    tmp_path: Path, finish_times: Callable[..., list[int]]
) -> None:
    count = 4
    ranks = []
    for rank in range(count):
        right, left = (rank + 1) % count, (rank - 1) % count
        nodes = []
        for step in range(3):
            first = 3 * step
            before = (first - 1,) if step else ()
            nodes += [send(first, right, *before), receive(first + 1, left, first)]
            nodes.append(compute(first + 2, first + 1, micros=7))
        ranks.append(nodes)
    operations = program(read_chakra(save(tmp_path, *ranks)), count)
    assert [operation.kind for operation in operations].count("send") == 3 * count

    def cost(_: ProgramOp) -> int:
        return 100

    assert max(finish_times(operations, cost)) == 3 * (100 + 7000)
    second = next(op for op in operations if op.kind == "send" and op.after)
    assert [operations[index].kind for index in second.after] == ["compute"]


def test_messages_match_by_sender_receiver_and_tag(tmp_path: Path) -> None:
    prefix = save(
        tmp_path,
        [send(1, 1, tag=5, size=50), send(2, 1, tag=6, size=60)],
        [receive(1, 0, tag=6, size=60), receive(2, 0, 1, tag=5, size=50)],
    )
    made = read_chakra(prefix)
    sends = {op.bytes: index for index, op in enumerate(made.operations) if isinstance(op, Send)}
    joins = [op.after for op in made.operations if isinstance(op, Compute)]
    assert joins[0] == (sends[60],)
    assert sends[50] in joins[1]


def test_process_groups_run_side_by_side_as_rings_of_one_operation(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"7": [0, 1], "8": [2, 3], "9": [0, 2]}))
    ranks = [[reduce(1, pg_name="7" if rank < 2 else "8")] for rank in range(4)]
    ranks[0].append(reduce(2, 1, size=5, pg_name="9"))
    ranks[2].append(reduce(2, 1, size=5, pg_name="9"))
    made = read_chakra(save(tmp_path, *ranks), comm_groups=groups)
    assert [op.rings for op in made.operations if isinstance(op, Collective)] == [
        ((0, 1), (2, 3)),
        ((0, 2),),
    ]
    assert made.operations[1].after == (0,)


def test_process_groups_of_pytorch_metadata_are_known(tmp_path: Path) -> None:
    listing = json.dumps([{"pg_name": "3", "ranks": [1, 0]}, {"pg_name": "4", "ranks": []}])
    ranks = []
    for _ in range(2):
        metadata = Node(id=0, name="## process_group:init ##", type=NodeType.METADATA_NODE)
        metadata.inputs.values = f"['{listing}']"
        ranks.append([metadata, reduce(1, pg_name="3"), reduce(2, pg_name="4")])
    made = read_chakra(save(tmp_path, *ranks))
    rings = [op.rings for op in made.operations if isinstance(op, Collective)]
    assert rings == [((1, 0),), ()]


@pytest.mark.parametrize(
    ("involved", "rings"),
    [
        ([True, False], ((0, 1), (2, 3), (4, 5), (6, 7))),
        ([False, True], ((0, 2, 4, 6), (1, 3, 5, 7))),
        ([True, True], ()),
    ],
)
def test_involved_dimensions_choose_the_rings(
    tmp_path: Path, involved: list[bool], rings: tuple[tuple[int, ...], ...]
) -> None:
    ranks = [[reduce(1, involved_dim=involved)] for _ in range(8)]
    (operation,) = read_chakra(save(tmp_path, *ranks), dims=(2, 4)).operations
    assert isinstance(operation, Collective)
    assert operation.rings == rings
    assert operation.group is (Group.CUSTOM if rings else Group.ALL)


def test_work_without_a_time_takes_the_rate_of_the_device(tmp_path: Path) -> None:
    prefix = save(tmp_path, [node(1, NodeType.COMP_NODE, num_ops=2_000_000)])
    assert read_chakra(prefix).total_compute_ns() == 0
    assert read_chakra(prefix, device_flops=1e12).total_compute_ns() == 2000


def test_barriers_and_empty_collectives(tmp_path: Path) -> None:
    barrier = node(1, NodeType.COMM_COLL_NODE, comm_type=CommType.BARRIER)
    prefix = save(tmp_path, *[[barrier, reduce(2, 1, size=0), compute(3, 2)] for _ in range(2)])
    operations = program(read_chakra(prefix), 2)
    assert [(op.kind, op.bytes, op.after) for op in operations] == [
        ("all_reduce", 1, ()),
        ("compute", 0, (0,)),
    ]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("astra:transformer", {"cycle_ns": 1000}),
        ("astra:resnet50", {"cycle_ns": 1000, "overlap": False}),
        ("astra:dlrm", {"cycle_ns": 1000}),
    ],
)
def test_writing_and_reading_give_the_same_program(
    tmp_path: Path, source: str, options: dict[str, object]
) -> None:
    made = build(source, options)
    groups = write_chakra(made, 8, tmp_path / "t")
    back = read_chakra(tmp_path / "t", comm_groups=groups)

    def essence(operation: ProgramOp) -> ProgramOp:
        return replace(operation, origin=(0, 0))

    assert list(map(essence, program(back, 8))) == list(map(essence, program(made, 8)))


def test_messages_computation_of_some_ranks_and_custom_rings_survive(tmp_path: Path) -> None:
    made = Workload(
        name="w",
        operations=(
            Compute(ns=(1000, 2000, 3000, 0), label="c"),
            Send(src=0, dst=2, bytes=9, label="m", after=(0,)),
            Compute(ns=4000, ranks=(2,), label="d", after=(1,)),
            Collective(
                kind=Kind.BROADCAST,
                bytes=100,
                group=Group.CUSTOM,
                rings=((2, 3),),
                root=2,
                label="b",
                after=(2,),
            ),
            Collective(kind=Kind.ALL_GATHER, bytes=400, label="g", after=(3,)),
        ),
    )
    groups = write_chakra(made, 4, tmp_path / "t")
    assert groups is not None
    assert json.loads(groups.read_text()) == {"1": [2, 3]}
    operations = program(read_chakra(tmp_path / "t", comm_groups=groups), 4)
    compute_ns = [0, 0, 0, 0]
    for operation in operations:
        if operation.kind == "compute":
            for rank, ns in enumerate(operation.compute_ns):
                compute_ns[rank] += ns
    assert compute_ns == [1000, 2000, 3000 + 4000, 0]
    rest = [(op.kind, op.bytes, op.rings, op.root) for op in operations if op.kind != "compute"]
    assert rest == [
        ("send", 9, (), 0),
        ("broadcast", 100, ((2, 3),), 2),
        ("all_gather", 400, (), 0),
    ]


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    fine = Workload(name="w", operations=(Compute(ns=1500),))
    with pytest.raises(WorkloadError, match="1500 ns is not a whole number of microseconds"):
        write_chakra(fine, 2, tmp_path / "t")
    uneven = Workload(name="w", operations=(Collective(kind=Kind.ALL_GATHER, bytes=10),))
    with pytest.raises(WorkloadError, match="10 bytes does not divide over 4 ranks"):
        write_chakra(uneven, 4, tmp_path / "t")
    with pytest.raises(WorkloadError, match="No such file or directory; give a folder"):
        write_chakra(build("astra:micro", {"cycle_ns": 1000}), 2, tmp_path / "no" / "t")


def test_model_groups_are_written_by_name(tmp_path: Path) -> None:
    made = Workload(
        name="w",
        operations=(Collective(kind=Kind.ALL_REDUCE, bytes=8, group=Group.MODEL),),
        model_parallel=2,
        inner=Inner.DATA,
    )
    groups = write_chakra(made, 4, tmp_path / "t")
    (operation,) = read_chakra(tmp_path / "t", comm_groups=groups).operations
    assert isinstance(operation, Collective)
    assert operation.rings == ((0, 2), (1, 3))


BAD: list[tuple[list[list[Any]], dict[str, Any], str]] = [
    (
        [[compute(1, 9)]],
        {},
        "t.0.et: node 1 'n1': depends on node 9, which the trace does not hold",
    ),
    ([[compute(1), compute(1)]], {}, "t.0.et: node 1 'n1': the id is taken by another node"),
    (
        [[compute(1, 2), compute(2, 1)]],
        {},
        "t.0.et: dependency cycle: node 1 'n1' waits for node 2 'n2' waits for node 1 'n1'",
    ),
    ([[]], {}, "t.0.et: no nodes; an execution trace holds metadata, then nodes"),
    (
        [[reduce(1)], [compute(1)]],
        {},
        "t.0.et: node 1 'n1': collective 0 of its group is missing in t.1.et",
    ),
    (
        [[reduce(1)], [reduce(1, size=65)]],
        {},
        "t.0.et: node 1 'n1': all_reduce over 64 bytes here, all_reduce over 65 bytes in ",
    ),
    (
        [[node(1, NodeType.COMM_COLL_NODE, comm_type=1, comm_size=8)]],
        {},
        "node 1 'n1': comm_type REDUCE is not simulated; there are ALL_REDUCE, ALL_GATHER",
    ),
    (
        [[node(1, NodeType.COMM_COLL_NODE, comm_type=0)]],
        {},
        "node 1 'n1': attribute comm_size is missing; a whole number from 0 up is needed",
    ),
    ([[reduce(1, pg_name="5")]], {}, "node 1 'n1': group '5' is not known; give comm_groups"),
    (
        [[reduce(1, involved_dim=[True, False])]] * 2,
        {},
        "involved_dim = [True, False] needs the sizes of these dimensions; set dims, such as 8x4",
    ),
    ([[compute(1)]] * 2, {"dims": (2, 2)}, "dims = 2x2 make 4 ranks, the traces have 2"),
    ([[send(1, 1)], [compute(1)]], {}, "t.0.et: message 'n1' from rank 0 to 1 with tag 0 is never"),
    (
        [[compute(1)], [receive(1, 0, tag=3)]],
        {},
        "t.1.et: node 1 'n1': no message from rank 0 to 1 with tag 3 is left for it in t.0.et",
    ),
    (
        [[send(1, 1)], [receive(1, 0, size=10)]],
        {},
        "t.1.et: node 1 'n1': waits for 10 bytes, rank 0 sends 9",
    ),
    ([[send(1, 0)]], {}, "t.0.et: node 1 'n1': comm_dst = 0 is not another rank (0..0)"),
]


@pytest.mark.parametrize(("ranks", "options", "message"), BAD)
def test_bad_traces_are_refused_with_file_and_node(
    tmp_path: Path, ranks: list[list[Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_chakra(save(tmp_path, *ranks), **options)
    assert message in str(caught.value)


def test_missing_nodes_can_be_ignored(tmp_path: Path) -> None:
    made = read_chakra(save(tmp_path, [compute(1, 9), compute(2, 1)]), ignore_missing=True)
    assert [op.after for op in made.operations] == [(), (0,)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (BY_HAND[:-3], "t.0.et: byte 18: a message of 59 bytes, but 56 are left"),
        (b"\xff\xff\xff\xff\xff\xff", "t.0.et: byte 0: broken length; the file is cut or no trace"),
        (b"\x02\xff\xff", "t.0.et: byte 0: not a Chakra GlobalMetadata"),
        (b"", "t.0.et: no nodes"),
        (b"\x1f\x8b\x00", "t.0.et: "),
    ],
)
def test_files_that_are_no_traces_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.0.et").write_bytes(data)
    with pytest.raises(WorkloadError) as caught:
        read_chakra(tmp_path / "t")
    assert message in str(caught.value)


def test_every_rank_needs_a_trace(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no traces t\.0\.et, t\.1\.et"):
        read_chakra(tmp_path / "t")
    with pytest.raises(WorkloadError, match="No such file or directory"):
        read_chakra(tmp_path / "no" / "t")
    for rank in (0, 2):
        (tmp_path / f"t.{rank}.et").write_bytes(BY_HAND)
    with pytest.raises(WorkloadError, match=r"t\.1\.et is missing \(2 of 3 ranks have a trace\)"):
        read_chakra(tmp_path / "t")


@pytest.mark.parametrize("text", ["{", "[]", '{"1": [0, 9]}', '{"1": []}', '{"1": [0, 0]}'])
def test_a_broken_file_of_groups_is_refused(tmp_path: Path, text: str) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(text)
    with pytest.raises(WorkloadError, match=r"groups\.json: "):
        read_chakra(save(tmp_path, [compute(1)]), comm_groups=groups)
