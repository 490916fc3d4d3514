"""The compiled P4 program that the controller loads, and the check that it is the right one.

What the controller writes to a switch is fixed by name: tables, match fields, actions,
parameters. A P4Info that lacks one of them, or has it in another width, is refused here, before a
switch is touched.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from finsy import P4Schema
from finsy.pbutil import from_text
from finsy.proto import p4i
from google.protobuf.text_format import ParseError

from ringstep.protocol.limits import (
    ALPHA_BITS,
    BLOCK_BITS,
    CPU_PORT,
    GENERATION_BITS,
    JOB_BITS,
    K_BITS,
    MARK_GAP_BITS,
    MAX_JOBS,
    NEXTHOP_BITS,
    PATH_BITS,
    PORT_BITS,
    PSN_BITS,
    QDEPTH_BITS,
    STEP_FIELD_BITS,
    T2NA_LOCAL_PORT_MASK,
    T2NA_RECIRC_PORT,
)
from ringstep.protocol.uec import JOB_ID_BITS

DEFAULT_P4INFO: Final = "ringstep_v1model.p4info.txtpb"
DEFAULT_JSON: Final = "ringstep_v1model.json"
UEC_P4INFO: Final = "ringstep_v1model_uec.p4info.txtpb"
UEC_JSON: Final = "ringstep_v1model_uec.json"
UEC_TABLE: Final = "job_by_uec_id"

JOB_COUNTERS: Final = (
    "job_data",
    "job_marks",
    "job_red_marks",
    "job_corrections",
    "job_advances",
)


class PipelineError(Exception):
    """The P4 program cannot be loaded or is not the controller's; says what and where."""


@dataclass(frozen=True, slots=True)
class TableContract:
    """Match fields as name -> (kind, width); actions; whether the default action is ours to set."""

    fields: Mapping[str, tuple[str, int]]
    actions: tuple[str, ...]
    profile: str | None = None
    settable_default: bool = False


ACTIONS: Final[Mapping[str, Mapping[str, int]]] = {
    "set_switch": {"ecmp_seed": 32},
    "set_nexthop": {"nexthop_id": NEXTHOP_BITS},
    "drop": {},
    "forward": {"port": PORT_BITS, "src_mac": 48, "dst_mac": 48},
    "set_job": {"job": JOB_BITS, "path_id": PATH_BITS},
    "set_block": {"block": BLOCK_BITS},
    "set_red": {"q_min": QDEPTH_BITS, "q_max": QDEPTH_BITS, "p_max": 16, "gap": MARK_GAP_BITS},
    "set_params": {
        "generation": GENERATION_BITS,
        "step_mask": STEP_FIELD_BITS,
        "step_sign": STEP_FIELD_BITS,
        "anchored": 1,
        "packets_per_step": PSN_BITS,
        "k": K_BITS,
        "tau_num": 8,
        "tau_den": 8,
        "t_win": 32,
        "n_sample": 16,
        "n_warmup": PSN_BITS,
        "alpha_max": ALPHA_BITS,
        "q_min": QDEPTH_BITS,
        "enabled": 1,
    },
}
"""Action -> parameter -> width in bits."""

TABLES: Final[Mapping[str, TableContract]] = {
    "switch_config": TableContract({}, ("set_switch",), settable_default=True),
    "route_v4": TableContract(
        {"dst_addr": ("LPM", 32)}, ("set_nexthop", "drop"), settable_default=True
    ),
    "route_v6": TableContract(
        {"dst_addr": ("LPM", 128)}, ("set_nexthop", "drop"), settable_default=True
    ),
    "nexthop": TableContract({"nexthop_id": ("EXACT", NEXTHOP_BITS)}, ("forward",), profile="ecmp"),
    "planned_path": TableContract({"path_id": ("EXACT", PATH_BITS)}, ("forward",)),
    "job_by_dst_qp": TableContract(
        {"dst_addr": ("EXACT", 128), "dst_qp": ("EXACT", 24)}, ("set_job",)
    ),
    "job_by_pair": TableContract(
        {"src_addr": ("EXACT", 128), "dst_addr": ("EXACT", 128)}, ("set_job",)
    ),
    "job_by_tag": TableContract(
        {"sport": ("TERNARY", 16), "resv6a": ("TERNARY", 6), "dscp": ("TERNARY", 6)}, ("set_job",)
    ),
    "job_params": TableContract({"job": ("EXACT", JOB_BITS)}, ("set_params",)),
    "block_map": TableContract(
        {"job": ("EXACT", JOB_BITS), "egress_port": ("EXACT", PORT_BITS)}, ("set_block",)
    ),
    "red": TableContract({"egress_port": ("EXACT", PORT_BITS)}, ("set_red",)),
}

OPTIONAL_TABLES: Final[Mapping[str, TableContract]] = {
    UEC_TABLE: TableContract({"uec_job_id": ("EXACT", JOB_ID_BITS)}, ("set_job",)),
}
"""Tables that only some builds of the program have; what needs one asks :meth:`Pipeline.has`."""

PACKET_METADATA: Final[Mapping[str, Mapping[str, int]]] = {
    "packet_out": {"egress_port": PORT_BITS, "op": 7},
    "packet_in": {"ingress_port": PORT_BITS, "op": 7},
}


@dataclass(frozen=True)
class Pipeline:
    """A checked program: P4Info with its look-ups, and the device configuration.

    ``cookie`` is a hash of both, so that two programs never share one.
    """

    schema: P4Schema
    source: str = field(compare=False)

    @property
    def cookie(self) -> int:
        """64-bit hash of P4Info and device configuration."""
        return self.schema.p4cookie

    def has(self, table: str) -> bool:
        """Say whether the program has a table."""
        return self.schema.tables.get(table) is not None

    @property
    def is_t2na(self) -> bool:
        """Whether the program is that for Tofino 2, whose state is per pipe."""
        return bool(self.schema.p4info.pkg_info.arch == "t2na")

    def state_port(self, egress_port: int) -> int:
        """Return the port to which a packet-out asks for the state behind an egress port.

        On Tofino 2 the pipe of a port is the upper bits of its number. Pipe 0 has the CPU port;
        another pipe answers over its recirculation port.
        """
        pipe = egress_port & ~T2NA_LOCAL_PORT_MASK
        return pipe | T2NA_RECIRC_PORT if self.is_t2na and pipe else CPU_PORT

    @property
    def max_group_size(self) -> int:
        """Largest ECMP group the program takes; 0 where it names no bound."""
        return self.schema.action_profiles["ecmp"].max_group_size


def load_pipeline(
    p4info: Path | None = None, device_json: Path | None = None, *, uec: bool = False
) -> Pipeline:
    """Load and check a program; without paths, the one that comes with Ringstep.

    ``uec`` takes the build of that one that finds the jobs of Ultra Ethernet packets too.

    Raises:
        PipelineError: a file cannot be read or parsed, or the program is not the controller's.
    """
    packaged = importlib.resources.files("ringstep") / "p4build"
    own_info, own_json = (UEC_P4INFO, UEC_JSON) if uec else (DEFAULT_P4INFO, DEFAULT_JSON)
    info_name = str(p4info or own_info)
    json_name = str(device_json or own_json)
    info_text = _read(p4info or packaged / own_info, info_name)
    device_config = _read(device_json or packaged / own_json, json_name)
    try:
        info = from_text(info_text.decode(), p4i.P4Info)
    except (ParseError, UnicodeDecodeError, IndexError) as error:
        raise PipelineError(
            f"{info_name}: not a P4Info in text form ({error}); use what "
            "p4c --p4runtime-files NAME.p4info.txtpb writes"
        ) from None
    if info.pkg_info.arch == "v1model":
        try:
            program = json.loads(device_config)
        except ValueError as error:
            raise PipelineError(
                f"{json_name}: not JSON ({error}); use what p4c-bm2-ss writes"
            ) from None
        if differences := list(json_differences(info, program)):
            raise PipelineError(
                f"{info_name} and {json_name} are of two programs; take both from one run of p4c\n"
                + "\n".join(f"  {difference}" for difference in differences)
            )
    pipeline = make_pipeline(info, device_config, info_name)
    return replace(pipeline, source=f"{info_name} with {json_name}")


def make_pipeline(info: p4i.P4Info, device_config: bytes, source: str) -> Pipeline:
    """Check a P4Info and put it together with its device configuration.

    Raises:
        PipelineError: the program lacks what the controller writes; all that is missing is listed.
    """
    try:
        schema = P4Schema(info, device_config)
    except (ValueError, AssertionError) as error:
        raise PipelineError(f"{source}: contradicts itself ({error}); compile it again") from None
    if problems := list(_mismatches(schema)):
        raise PipelineError(
            f"{source}: not the program of this controller; compile "
            "p4src/ringstep_v1model.p4 of the same version\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )
    return Pipeline(schema, source)


def json_differences(info: p4i.P4Info, program: Any) -> Iterator[str]:
    """Yield what a P4Info says otherwise than p4c's BMv2 JSON beside it.

    A switch may take such a pair and then match on other fields than the controller writes.
    """
    try:
        tables = {
            table["name"]: {key["name"]: key["match_type"] for key in table["key"]}
            for pipeline in program["pipelines"]
            for table in pipeline["tables"]
        }
        actions = {
            action["name"]: [(one["name"], one["bitwidth"]) for one in action["runtime_data"]]
            for action in program["actions"]
        }
        counters = {one["name"]: one.get("size") for one in program["counter_arrays"]}
    except (KeyError, TypeError, AttributeError) as error:
        yield f"the JSON is not what p4c-bm2-ss writes ({type(error).__name__}: {error})"
        return
    for table in info.tables:
        name = table.preamble.name
        kinds = [p4i.MatchField.MatchType.Name(field.match_type) for field in table.match_fields]
        # A program's optional match is BMv2's ternary.
        wanted = ["ternary" if kind == "OPTIONAL" else kind.lower() for kind in kinds]
        if name not in tables:
            yield f"table {name} is not in the JSON"
        elif list(tables[name].values()) != wanted:
            has = ", ".join(f"{field} {kind}" for field, kind in tables[name].items())
            yield f"table {name}: the JSON matches {has or 'nothing'}; the P4Info {wanted}"
    for action in info.actions:
        name, params = action.preamble.name, [(one.name, one.bitwidth) for one in action.params]
        if params and name not in actions:
            yield f"action {name} is not in the JSON"
        elif params and actions[name] != params:
            yield f"action {name}: the JSON has parameters {actions[name]}; the P4Info {params}"
    for counter in info.counters:
        if counters.get(counter.preamble.name) != counter.size:
            yield (
                f"counter {counter.preamble.name}: size {counters.get(counter.preamble.name)} in "
                f"the JSON, {counter.size} in the P4Info"
            )


def _read(path: Path | importlib.resources.abc.Traversable, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PipelineError(
            f"{name}: cannot be read ({error.strerror}); build it with 'make p4', or give the "
            "path of p4c's output"
        ) from None


def _mismatches(schema: P4Schema) -> Iterator[str]:
    for table_name, contract in {**TABLES, **OPTIONAL_TABLES}.items():
        table = schema.tables.get(table_name)
        if table is None:
            if table_name in TABLES:
                yield f"table {table_name} is missing"
            continue
        found = {
            match.alias: (getattr(match.match_type, "name", str(match.match_type)), match.bitwidth)
            for match in table.match_fields
        }
        for name, (kind, width) in contract.fields.items():
            if found.get(name) != (kind, width):
                has = "{} of {} bits".format(*found[name]) if name in found else "missing"
                yield f"table {table_name}, field {name}: {has}; needs {kind} of {width} bits"
        for name in found.keys() - contract.fields.keys():
            yield f"table {table_name}, field {name}: unknown to the controller"
        for name in contract.actions:
            if table.actions.get(name) is None:
                yield f"table {table_name}: action {name} is missing"
        profile = table.action_profile.alias if table.action_profile else None
        if profile != contract.profile:
            yield f"table {table_name}: action profile {profile}; needs {contract.profile}"
        if contract.settable_default and table.const_default_action is not None:
            yield f"table {table_name}: default action is const; must be settable"
    for action_name, params in ACTIONS.items():
        action = schema.actions.get(action_name)
        widths = {param.name: param.bitwidth for param in action.params} if action else None
        if widths is not None and widths != params:
            yield f"action {action_name}: parameters {widths}; needs {dict(params)}"
    for counter_name in JOB_COUNTERS:
        counter = schema.counters.get(counter_name)
        if counter is None or counter.size <= MAX_JOBS:
            size = "missing" if counter is None else f"size {counter.size}"
            yield f"counter {counter_name}: {size}; needs {MAX_JOBS + 1} cells"
    for header, fields in PACKET_METADATA.items():
        metadata = schema.controller_packet_metadata.get(header)
        found_bits = {m.name: m.bitwidth for m in metadata.metadata} if metadata else {}
        for name, width in fields.items():
            if found_bits.get(name) != width:
                yield f"header {header}: field {name} of {width} bits is missing"
