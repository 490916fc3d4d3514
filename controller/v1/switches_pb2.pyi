from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SwitchPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SWITCH_PHASE_UNSPECIFIED: _ClassVar[SwitchPhase]
    SWITCH_PHASE_UNMANAGED: _ClassVar[SwitchPhase]
    SWITCH_PHASE_CONNECTING: _ClassVar[SwitchPhase]
    SWITCH_PHASE_PUSHING_PIPELINE: _ClassVar[SwitchPhase]
    SWITCH_PHASE_PROGRAMMING: _ClassVar[SwitchPhase]
    SWITCH_PHASE_IN_SYNC: _ClassVar[SwitchPhase]
    SWITCH_PHASE_ERROR: _ClassVar[SwitchPhase]
SWITCH_PHASE_UNSPECIFIED: SwitchPhase
SWITCH_PHASE_UNMANAGED: SwitchPhase
SWITCH_PHASE_CONNECTING: SwitchPhase
SWITCH_PHASE_PUSHING_PIPELINE: SwitchPhase
SWITCH_PHASE_PROGRAMMING: SwitchPhase
SWITCH_PHASE_IN_SYNC: SwitchPhase
SWITCH_PHASE_ERROR: SwitchPhase

class SwitchStatus(_message.Message):
    __slots__ = ("phase", "detail", "desired_entries", "updates_written", "foreign_removed", "sessions")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DESIRED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_REMOVED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    phase: SwitchPhase
    detail: str
    desired_entries: int
    updates_written: int
    foreign_removed: int
    sessions: int
    def __init__(self, phase: _Optional[_Union[SwitchPhase, str]] = ..., detail: _Optional[str] = ..., desired_entries: _Optional[int] = ..., updates_written: _Optional[int] = ..., foreign_removed: _Optional[int] = ..., sessions: _Optional[int] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "device_id", "address", "role", "status")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    device_id: int
    address: str
    role: str
    status: SwitchStatus
    def __init__(self, name: _Optional[str] = ..., device_id: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., status: _Optional[_Union[SwitchStatus, _Mapping]] = ...) -> None: ...

class AddSwitchRequest(_message.Message):
    __slots__ = ("name", "address", "device_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    device_id: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., device_id: _Optional[int] = ...) -> None: ...

class AddSwitchResponse(_message.Message):
    __slots__ = ("switch",)
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    switch: Switch
    def __init__(self, switch: _Optional[_Union[Switch, _Mapping]] = ...) -> None: ...

class RemoveSwitchRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemoveSwitchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSwitchesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSwitchesResponse(_message.Message):
    __slots__ = ("switches",)
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    def __init__(self, switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ...) -> None: ...
