"""The messages of Chakra execution traces, described with protobuf's own descriptors.

The schema is MLCommons Chakra's ``et_def.proto`` (package ChakraProtoMsg, traces "0.0.4" and
"1.0.0"): only field numbers and types, which are the wire format. The messages live in a descriptor
pool of their own, so an installed ``chakra`` package does not collide with them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "ChakraProtoMsg"


class NodeType(IntEnum):
    """``Node.type``."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CommType(IntEnum):
    """Value of the attribute ``comm_type``."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


# In the order of the field numbers: scalar n at 3 + 2 n, its list at 4 + 2 n.
_SCALARS = (
    ("double", _FIELD.TYPE_DOUBLE),
    ("float", _FIELD.TYPE_FLOAT),
    ("int32", _FIELD.TYPE_INT32),
    ("int64", _FIELD.TYPE_INT64),
    ("uint32", _FIELD.TYPE_UINT32),
    ("uint64", _FIELD.TYPE_UINT64),
    ("sint32", _FIELD.TYPE_SINT32),
    ("sint64", _FIELD.TYPE_SINT64),
    ("fixed32", _FIELD.TYPE_FIXED32),
    ("fixed64", _FIELD.TYPE_FIXED64),
    ("sfixed32", _FIELD.TYPE_SFIXED32),
    ("sfixed64", _FIELD.TYPE_SFIXED64),
    ("bool", _FIELD.TYPE_BOOL),
    ("string", _FIELD.TYPE_STRING),
    ("bytes", _FIELD.TYPE_BYTES),
)


def _file() -> descriptor_pb2.FileDescriptorProto:
    schema = descriptor_pb2.FileDescriptorProto(
        name="ringstep_ns3/chakra_et.proto", package=_PACKAGE, syntax="proto3"
    )

    def message(name: str) -> descriptor_pb2.DescriptorProto:
        return schema.message_type.add(name=name)

    def add(
        to: descriptor_pb2.DescriptorProto,
        name: str,
        number: int,
        kind: Any,
        *,
        repeated: bool = False,
    ) -> descriptor_pb2.FieldDescriptorProto:
        field = to.field.add(name=name, number=number)
        field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
        if isinstance(kind, str):
            field.type = _FIELD.TYPE_MESSAGE
            field.type_name = f".{_PACKAGE}.{kind}"
        else:
            field.type = kind
        return field

    attribute = message("AttributeProto")
    add(attribute, "name", 1, _FIELD.TYPE_STRING)
    add(attribute, "doc_string", 2, _FIELD.TYPE_STRING)
    attribute.oneof_decl.add(name="value")
    for position, (scalar, kind) in enumerate(_SCALARS):
        list_name = f"{scalar.capitalize()}List"
        add(attribute, f"{scalar}_val", 3 + 2 * position, kind).oneof_index = 0
        add(attribute, f"{scalar}_list", 4 + 2 * position, list_name).oneof_index = 0
        add(message(list_name), "values", 1, kind, repeated=True)

    metadata = message("GlobalMetadata")
    add(metadata, "version", 1, _FIELD.TYPE_STRING)
    add(metadata, "attr", 2, "AttributeProto", repeated=True)

    info = message("IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), start=1):
        add(info, name, number, _FIELD.TYPE_STRING)

    node = message("Node")
    add(node, "id", 1, _FIELD.TYPE_UINT64)
    add(node, "name", 2, _FIELD.TYPE_STRING)
    # NodeType is an enum on paper; on the wire it is this.
    add(node, "type", 3, _FIELD.TYPE_INT32)
    add(node, "ctrl_deps", 4, _FIELD.TYPE_UINT64, repeated=True)
    add(node, "data_deps", 5, _FIELD.TYPE_UINT64, repeated=True)
    add(node, "start_time_micros", 6, _FIELD.TYPE_UINT64)
    add(node, "duration_micros", 7, _FIELD.TYPE_UINT64)
    add(node, "inputs", 8, "IOInfo")
    add(node, "outputs", 9, "IOInfo")
    add(node, "attr", 10, "AttributeProto", repeated=True)
    return schema


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Node: Any = _class("Node")
GlobalMetadata: Any = _class("GlobalMetadata")
