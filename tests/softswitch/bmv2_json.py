"""Builds small BMv2 JSON programs, shaped as p4c writes them, and runs frames through them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from finsy.proto import p4i

from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.tables import Pipeline

Json = dict[str, Any]

STANDARD_FIELDS: list[list[Any]] = [
    ["ingress_port", 9, False],
    ["egress_spec", 9, False],
    ["egress_port", 9, False],
    ["instance_type", 32, False],
    ["packet_length", 32, False],
    ["enq_timestamp", 32, False],
    ["enq_qdepth", 19, False],
    ["deq_timedelta", 32, False],
    ["deq_qdepth", 19, False],
    ["ingress_global_timestamp", 48, False],
    ["egress_global_timestamp", 48, False],
    ["mcast_grp", 16, False],
    ["egress_rid", 16, False],
    ["checksum_error", 1, False],
    ["parser_error", 32, False],
    ["_padding", 3, False],
]
ERRORS = [
    ["NoError", 0],
    ["PacketTooShort", 1],
    ["NoMatch", 2],
    ["StackOutOfBounds", 3],
    ["HeaderTooShort", 4],
    ["ParserTimeout", 5],
    ["ParserInvalidArgument", 6],
    ["Custom", 7],
]
ALIASES = [
    [f"queueing_metadata.{n}", ["standard_metadata", n]]
    for n in ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")
] + [
    [f"intrinsic_metadata.{n}", ["standard_metadata", n]]
    for n in ("ingress_global_timestamp", "egress_global_timestamp", "mcast_grp", "egress_rid")
]


# -- values


def field(header: str, name: str) -> Json:
    return {"type": "field", "value": [header, name]}


def std(name: str) -> Json:
    return field("standard_metadata", name)


def meta(name: str) -> Json:
    return field("meta", name)


def num(value: int) -> Json:
    return {"type": "hexstr", "value": hex(value)}


def arg(index: int) -> Json:
    return {"type": "runtime_data", "value": index}


def header(name: str) -> Json:
    return {"type": "header", "value": name}


def op(operator: str, left: Json | None, right: Json, cond: Json | None = None) -> Json:
    inner: Json = {"op": operator, "left": left, "right": right}
    if cond is not None:
        inner["cond"] = cond
    return {"type": "expression", "value": inner}


def valid(name: str) -> Json:
    return op("d2b", None, field(name, "$valid$"))


# -- statements


def call(name: str, *parameters: Any) -> Json:
    return {"op": name, "parameters": list(parameters)}


def assign(target: Json, value: Json) -> Json:
    wrapped = value if value["type"] != "expression" else {"type": "expression", "value": value}
    return call("assign", target, wrapped)


def jump(target: int) -> Json:
    return call("_jump", num(target))


def jump_if_zero(condition: Json, target: int) -> Json:
    return call("_jump_if_zero", {"type": "expression", "value": condition}, num(target))


def register(name: str) -> Json:
    return {"type": "register_array", "value": name}


def counter(name: str) -> Json:
    return {"type": "counter_array", "value": name}


def meter(name: str) -> Json:
    return {"type": "meter_array", "value": name}


def send_to(port: int) -> Json:
    return assign(std("egress_spec"), num(port))


# -- the program


class ProgramBuilder:
    """Collects the parts of one program. Controls run their nodes in the order they are added."""

    def __init__(self) -> None:
        self.header_types: dict[str, list[list[Any]]] = {"standard_metadata": STANDARD_FIELDS}
        self.headers: list[tuple[str, str, bool]] = [
            ("standard_metadata", "standard_metadata", True)
        ]
        self.states: list[Json] = []
        self.start = "start"
        self.deparser: list[str] = []
        self.actions: list[Json] = []
        self.tables: dict[str, list[Json]] = {"ingress": [], "egress": []}
        self.conditionals: dict[str, list[Json]] = {"ingress": [], "egress": []}
        self.starts: dict[str, str | None] = {}
        self.profiles: list[Json] = []
        self.registers: list[Json] = []
        self.counters: list[Json] = []
        self.meters: list[Json] = []
        self.field_lists: list[Json] = []
        self.learn_lists: list[Json] = []
        self.calculations: list[Json] = []
        self.checksums: list[Json] = []
        self.extra: Json = {}

    # headers and parser

    def metadata(self, **widths: int) -> None:
        fields = [[n, w, False] for n, w in widths.items()]
        self.metadata_fields(fields)

    def metadata_fields(self, fields: list[list[Any]]) -> None:
        pad = -sum(f[1] for f in fields) % 8
        self.header_types["meta_t"] = fields + ([["_padding_0", pad, False]] if pad else [])
        self.headers.append(("meta", "meta_t", True))

    def header(self, name: str, fields: Iterable[list[Any]], *, emit: bool = True) -> None:
        self.header_types[f"{name}_t"] = [f if len(f) > 2 else [*f, False] for f in fields]
        self.headers.append((name, f"{name}_t", False))
        if emit:
            self.deparser.append(name)

    def state(
        self,
        name: str,
        ops: list[Json] | None = None,
        key: list[Json] | None = None,
        transitions: list[Json] | None = None,
    ) -> None:
        self.states.append(
            {
                "name": name,
                "id": len(self.states),
                "parser_ops": ops or [],
                "transition_key": key or [],
                "transitions": transitions or [goto(None)],
            }
        )

    def field_list(self, *fields: Json) -> Json:
        """A list of metadata that a copy keeps; returns its id as the primitives take it."""
        number = len(self.field_lists) + 1
        self.field_lists.append({"id": number, "name": f"fl_{number}", "elements": list(fields)})
        return num(number)

    def learn_list(self, name: str, *fields: Json) -> Json:
        """What a digest holds; returns its id as generate_digest takes it."""
        number = len(self.learn_lists) + 1
        self.learn_lists.append({"id": number, "name": name, "elements": list(fields)})
        return num(number)

    # control

    def action(
        self, name: str, primitives: list[Json], params: dict[str, int] | None = None
    ) -> int:
        number = len(self.actions)
        self.actions.append(
            {
                "name": name,
                "id": number,
                "runtime_data": [{"name": n, "bitwidth": w} for n, w in (params or {}).items()],
                "primitives": primitives,
            }
        )
        return number

    def do(self, control: str, primitives: list[Json]) -> None:
        """A compiler-made table that runs `primitives` for each packet."""
        name = f"tbl_act_{len(self.actions)}"
        number = self.action(f"act_{len(self.actions)}", primitives)
        self.table(
            control,
            name,
            [],
            [number],
            default_entry={
                "action_id": number,
                "action_const": True,
                "action_data": [],
                "action_entry_const": True,
            },
        )

    def table(
        self, control: str, name: str, keys: list[Json], action_ids: list[int], **more: Any
    ) -> Json:
        kinds = [k["match_type"] for k in keys]
        kind = next((k for k in ("range", "ternary", "lpm") if k in kinds), "exact")
        table = {
            "name": name,
            "id": len(self.tables[control]),
            "key": keys,
            "match_type": kind,
            "type": "simple",
            "max_size": 1024,
            "with_counters": False,
            "support_timeout": False,
            "direct_meters": None,
            "action_ids": action_ids,
            "actions": [self.actions[i]["name"] for i in action_ids],
            "base_default_next": None,
            "next_tables": {self.actions[i]["name"]: None for i in action_ids},
            **more,
        }
        previous = self.tables[control][-1] if self.tables[control] else None
        if previous is not None and "linked" not in previous:
            previous["base_default_next"] = name
            for action in previous["next_tables"]:
                previous["next_tables"][action] = name
        self.tables[control].append(table)
        return table

    def document(self) -> Json:
        ids = {name: i for i, name in enumerate(self.header_types)}
        if not self.states:
            self.state("start")
        return {
            "header_types": [
                {"name": n, "id": ids[n], "fields": f} for n, f in self.header_types.items()
            ],
            "headers": [
                {"name": n, "id": i, "header_type": t, "metadata": m, "pi_omit": True}
                for i, (n, t, m) in enumerate(self.headers)
            ],
            "header_stacks": [],
            "header_union_types": [],
            "header_unions": [],
            "header_union_stacks": [],
            "errors": ERRORS,
            "enums": [],
            "parsers": [
                {"name": "parser", "id": 0, "init_state": self.start, "parse_states": self.states}
            ],
            "parse_vsets": [],
            "deparsers": [{"name": "deparser", "id": 0, "order": self.deparser, "primitives": []}],
            "meter_arrays": self.meters,
            "counter_arrays": self.counters,
            "register_arrays": self.registers,
            "calculations": self.calculations,
            "field_lists": self.field_lists,
            "learn_lists": self.learn_lists,
            "actions": self.actions,
            "pipelines": [
                {
                    "name": name,
                    "id": i,
                    "init_table": self.starts.get(
                        name, self.tables[name][0]["name"] if self.tables[name] else None
                    ),
                    "tables": self.tables[name],
                    "action_profiles": self.profiles if name == "ingress" else [],
                    "conditionals": self.conditionals[name],
                }
                for i, name in enumerate(("ingress", "egress"))
            ],
            "checksums": self.checksums,
            "force_arith": [],
            "extern_instances": [],
            "field_aliases": ALIASES,
            "__meta__": {"version": [2, 23]},
            **self.extra,
        }

    def text(self) -> str:
        return json.dumps(self.document())

    def compile(self) -> Pipeline:
        return compile_pipeline(p4i.P4Info(), self.text())

    def switch(self, **options: Any) -> Switch:
        switch = Switch(**options)
        switch.commit(self.compile())
        return switch


def key(match_type: str, target: Json, mask: int | None = None) -> Json:
    return {
        "match_type": match_type,
        "name": ".".join(target["value"]),
        "target": target["value"],
        "mask": None if mask is None else hex(mask),
    }


def extract(name: str) -> Json:
    return {"op": "extract", "parameters": [{"type": "regular", "value": name}]}


def goto(state: str | None, value: int | None = None, mask: int | None = None) -> Json:
    if value is None:
        return {"type": "default", "value": None, "mask": None, "next_state": state}
    return {
        "type": "hexstr",
        "value": hex(value),
        "mask": None if mask is None else hex(mask),
        "next_state": state,
    }


def scratch_program(widths: dict[str, int]) -> ProgramBuilder:
    """One header `h` with the given fields (whole bytes in all), extracted and emitted."""
    program = ProgramBuilder()
    program.header("h", [[n, w] for n, w in widths.items()])
    program.state("start", [extract("h")])
    return program


def pack(widths: dict[str, int], values: dict[str, int]) -> bytes:
    """The bytes of a header."""
    number = 0
    for name, width in widths.items():
        number = number << width | values.get(name, 0) & ((1 << width) - 1)
    return number.to_bytes(sum(widths.values()) // 8, "big")


def unpack(widths: dict[str, int], data: bytes) -> dict[str, int]:
    """The fields of a header."""
    number = int.from_bytes(data[: sum(widths.values()) // 8], "big")
    result = {}
    for name, width in reversed(widths.items()):
        result[name] = number & ((1 << width) - 1)
        number >>= width
    return result


def one(switch: Switch, frame: bytes, port: int = 1, now: float = 1000.0) -> tuple[int, bytes]:
    """The only (port, frame) that comes out for `frame`."""
    sent = through(switch, frame, port, now)
    assert len(sent) == 1, f"{len(sent)} frames came out: {sent}, {switch.stats}"
    return sent[0]


def through(
    switch: Switch, frame: bytes, port: int = 1, now: float = 1000.0
) -> list[tuple[int, bytes]]:
    """All that comes out for `frame`."""
    switch.receive(port, frame, now)
    sent = switch.advance(now)
    assert switch.stats.error_drops == 0, switch.stats.last_error
    return sent
