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
    __slots__ = ("phase", "detail", "desired_entries", "updates_written", "foreign_removed", "sessions", "pending", "drift_missing", "drift_changed", "drift_foreign", "audited_unix_ms", "foreign_kept", "refused", "refused_count", "drifts")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DESIRED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_REMOVED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    DRIFT_MISSING_FIELD_NUMBER: _ClassVar[int]
    DRIFT_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FOREIGN_FIELD_NUMBER: _ClassVar[int]
    AUDITED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_KEPT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRIFTS_FIELD_NUMBER: _ClassVar[int]
    phase: SwitchPhase
    detail: str
    desired_entries: int
    updates_written: int
    foreign_removed: int
    sessions: int
    pending: int
    drift_missing: int
    drift_changed: int
    drift_foreign: int
    audited_unix_ms: int
    foreign_kept: int
    refused: _containers.RepeatedScalarFieldContainer[str]
    refused_count: int
    drifts: int
    def __init__(self, phase: _Optional[_Union[SwitchPhase, str]] = ..., detail: _Optional[str] = ..., desired_entries: _Optional[int] = ..., updates_written: _Optional[int] = ..., foreign_removed: _Optional[int] = ..., sessions: _Optional[int] = ..., pending: _Optional[int] = ..., drift_missing: _Optional[int] = ..., drift_changed: _Optional[int] = ..., drift_foreign: _Optional[int] = ..., audited_unix_ms: _Optional[int] = ..., foreign_kept: _Optional[int] = ..., refused: _Optional[_Iterable[str]] = ..., refused_count: _Optional[int] = ..., drifts: _Optional[int] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "device_id", "address", "role", "status", "drained", "down_ports")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    DOWN_PORTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    device_id: int
    address: str
    role: str
    status: SwitchStatus
    drained: bool
    down_ports: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., device_id: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., status: _Optional[_Union[SwitchStatus, _Mapping]] = ..., drained: _Optional[bool] = ..., down_ports: _Optional[_Iterable[int]] = ...) -> None: ...

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

class DrainRequest(_message.Message):
    __slots__ = ("name", "drained")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    drained: bool
    def __init__(self, name: _Optional[str] = ..., drained: _Optional[bool] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("switch", "moved_jobs")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    MOVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    switch: Switch
    moved_jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, switch: _Optional[_Union[Switch, _Mapping]] = ..., moved_jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class SetLinkRequest(_message.Message):
    __slots__ = ("switch", "port", "up")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    switch: str
    port: int
    up: bool
    def __init__(self, switch: _Optional[str] = ..., port: _Optional[int] = ..., up: _Optional[bool] = ...) -> None: ...

class SetLinkResponse(_message.Message):
    __slots__ = ("moved_jobs",)
    MOVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    moved_jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, moved_jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class ReloadTopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadTopologyResponse(_message.Message):
    __slots__ = ("moved_jobs", "broken_jobs")
    MOVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    BROKEN_JOBS_FIELD_NUMBER: _ClassVar[int]
    moved_jobs: _containers.RepeatedScalarFieldContainer[str]
    broken_jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, moved_jobs: _Optional[_Iterable[str]] = ..., broken_jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchSwitchesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SwitchEvent(_message.Message):
    __slots__ = ("switch", "synced")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    switch: Switch
    synced: bool
    def __init__(self, switch: _Optional[_Union[Switch, _Mapping]] = ..., synced: _Optional[bool] = ...) -> None: ...
