from ringstep.controller.v1 import switches_pb2 as _switches_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MatchKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MATCH_KIND_UNSPECIFIED: _ClassVar[MatchKind]
    MATCH_KIND_DST_QP: _ClassVar[MatchKind]
    MATCH_KIND_PAIR: _ClassVar[MatchKind]
    MATCH_KIND_TAG: _ClassVar[MatchKind]
    MATCH_KIND_UEC: _ClassVar[MatchKind]

class TagCarrier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAG_CARRIER_UNSPECIFIED: _ClassVar[TagCarrier]
    TAG_CARRIER_SPORT: _ClassVar[TagCarrier]
    TAG_CARRIER_RESV6A: _ClassVar[TagCarrier]
    TAG_CARRIER_DSCP: _ClassVar[TagCarrier]

class ProgressMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROGRESS_MODE_UNSPECIFIED: _ClassVar[ProgressMode]
    PROGRESS_MODE_PER_STEP: _ClassVar[ProgressMode]
    PROGRESS_MODE_ANCHORED: _ClassVar[ProgressMode]

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_SWITCH: _ClassVar[Scope]
    SCOPE_PORT: _ClassVar[Scope]

class MarkingChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MARKING_CHOICE_UNSPECIFIED: _ClassVar[MarkingChoice]
    MARKING_CHOICE_AUTO: _ClassVar[MarkingChoice]
    MARKING_CHOICE_ON: _ClassVar[MarkingChoice]
    MARKING_CHOICE_OFF: _ClassVar[MarkingChoice]

class PathsChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATHS_CHOICE_UNSPECIFIED: _ClassVar[PathsChoice]
    PATHS_CHOICE_PLANNED: _ClassVar[PathsChoice]
    PATHS_CHOICE_ECMP: _ClassVar[PathsChoice]

class Followers(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FOLLOWERS_UNSPECIFIED: _ClassVar[Followers]
    FOLLOWERS_EVERYWHERE: _ClassVar[Followers]
    FOLLOWERS_TOR: _ClassVar[Followers]

class JobEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_EVENT_KIND_UNSPECIFIED: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_SNAPSHOT: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_SYNCED: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_REGISTERED: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_UPDATED: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_PROGRAMMING: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_RELEASED: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_EXPIRED: _ClassVar[JobEventKind]
    JOB_EVENT_KIND_STATE: _ClassVar[JobEventKind]
MATCH_KIND_UNSPECIFIED: MatchKind
MATCH_KIND_DST_QP: MatchKind
MATCH_KIND_PAIR: MatchKind
MATCH_KIND_TAG: MatchKind
MATCH_KIND_UEC: MatchKind
TAG_CARRIER_UNSPECIFIED: TagCarrier
TAG_CARRIER_SPORT: TagCarrier
TAG_CARRIER_RESV6A: TagCarrier
TAG_CARRIER_DSCP: TagCarrier
PROGRESS_MODE_UNSPECIFIED: ProgressMode
PROGRESS_MODE_PER_STEP: ProgressMode
PROGRESS_MODE_ANCHORED: ProgressMode
SCOPE_UNSPECIFIED: Scope
SCOPE_SWITCH: Scope
SCOPE_PORT: Scope
MARKING_CHOICE_UNSPECIFIED: MarkingChoice
MARKING_CHOICE_AUTO: MarkingChoice
MARKING_CHOICE_ON: MarkingChoice
MARKING_CHOICE_OFF: MarkingChoice
PATHS_CHOICE_UNSPECIFIED: PathsChoice
PATHS_CHOICE_PLANNED: PathsChoice
PATHS_CHOICE_ECMP: PathsChoice
FOLLOWERS_UNSPECIFIED: Followers
FOLLOWERS_EVERYWHERE: Followers
FOLLOWERS_TOR: Followers
JOB_EVENT_KIND_UNSPECIFIED: JobEventKind
JOB_EVENT_KIND_SNAPSHOT: JobEventKind
JOB_EVENT_KIND_SYNCED: JobEventKind
JOB_EVENT_KIND_REGISTERED: JobEventKind
JOB_EVENT_KIND_UPDATED: JobEventKind
JOB_EVENT_KIND_PROGRAMMING: JobEventKind
JOB_EVENT_KIND_RELEASED: JobEventKind
JOB_EVENT_KIND_EXPIRED: JobEventKind
JOB_EVENT_KIND_STATE: JobEventKind

class Ring(_message.Message):
    __slots__ = ("hosts", "channels", "rail")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    RAIL_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    channels: int
    rail: str
    def __init__(self, hosts: _Optional[_Iterable[str]] = ..., channels: _Optional[int] = ..., rail: _Optional[str] = ...) -> None: ...

class QueuePair(_message.Message):
    __slots__ = ("src", "dst", "dest_qp")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    DEST_QP_FIELD_NUMBER: _ClassVar[int]
    src: str
    dst: str
    dest_qp: int
    def __init__(self, src: _Optional[str] = ..., dst: _Optional[str] = ..., dest_qp: _Optional[int] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("carrier", "value")
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    carrier: TagCarrier
    value: int
    def __init__(self, carrier: _Optional[_Union[TagCarrier, str]] = ..., value: _Optional[int] = ...) -> None: ...

class Fraction(_message.Message):
    __slots__ = ("num", "den")
    NUM_FIELD_NUMBER: _ClassVar[int]
    DEN_FIELD_NUMBER: _ClassVar[int]
    num: int
    den: int
    def __init__(self, num: _Optional[int] = ..., den: _Optional[int] = ...) -> None: ...

class MarkerOverrides(_message.Message):
    __slots__ = ("k", "tau", "t_win_us", "n_sample", "n_warmup", "alpha_max", "q_gate", "step_bits", "job_bits", "mode", "packets_per_step", "enabled", "scope")
    K_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    T_WIN_US_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    N_WARMUP_FIELD_NUMBER: _ClassVar[int]
    ALPHA_MAX_FIELD_NUMBER: _ClassVar[int]
    Q_GATE_FIELD_NUMBER: _ClassVar[int]
    STEP_BITS_FIELD_NUMBER: _ClassVar[int]
    JOB_BITS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PACKETS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    k: float
    tau: Fraction
    t_win_us: int
    n_sample: int
    n_warmup: int
    alpha_max: int
    q_gate: int
    step_bits: int
    job_bits: int
    mode: ProgressMode
    packets_per_step: int
    enabled: bool
    scope: Scope
    def __init__(self, k: _Optional[float] = ..., tau: _Optional[_Union[Fraction, _Mapping]] = ..., t_win_us: _Optional[int] = ..., n_sample: _Optional[int] = ..., n_warmup: _Optional[int] = ..., alpha_max: _Optional[int] = ..., q_gate: _Optional[int] = ..., step_bits: _Optional[int] = ..., job_bits: _Optional[int] = ..., mode: _Optional[_Union[ProgressMode, str]] = ..., packets_per_step: _Optional[int] = ..., enabled: _Optional[bool] = ..., scope: _Optional[_Union[Scope, str]] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("sender", "preset", "step_bytes", "rtt_ns", "mtu", "tenants")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    STEP_BYTES_FIELD_NUMBER: _ClassVar[int]
    RTT_NS_FIELD_NUMBER: _ClassVar[int]
    MTU_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    sender: str
    preset: str
    step_bytes: int
    rtt_ns: int
    mtu: int
    tenants: bool
    def __init__(self, sender: _Optional[str] = ..., preset: _Optional[str] = ..., step_bytes: _Optional[int] = ..., rtt_ns: _Optional[int] = ..., mtu: _Optional[int] = ..., tenants: _Optional[bool] = ...) -> None: ...

class MarkingDecision(_message.Message):
    __slots__ = ("choice", "reason", "confidence", "closed_loop")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_LOOP_FIELD_NUMBER: _ClassVar[int]
    choice: MarkingChoice
    reason: str
    confidence: str
    closed_loop: bool
    def __init__(self, choice: _Optional[_Union[MarkingChoice, str]] = ..., reason: _Optional[str] = ..., confidence: _Optional[str] = ..., closed_loop: _Optional[bool] = ...) -> None: ...

class MarkerParameters(_message.Message):
    __slots__ = ("k", "tau", "t_win_us", "n_sample", "n_warmup", "alpha_max", "q_gate", "step_bits", "job_bits", "mode", "packets_per_step", "enabled", "scope", "marking")
    K_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    T_WIN_US_FIELD_NUMBER: _ClassVar[int]
    N_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    N_WARMUP_FIELD_NUMBER: _ClassVar[int]
    ALPHA_MAX_FIELD_NUMBER: _ClassVar[int]
    Q_GATE_FIELD_NUMBER: _ClassVar[int]
    STEP_BITS_FIELD_NUMBER: _ClassVar[int]
    JOB_BITS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PACKETS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    MARKING_FIELD_NUMBER: _ClassVar[int]
    k: float
    tau: Fraction
    t_win_us: int
    n_sample: int
    n_warmup: int
    alpha_max: int
    q_gate: int
    step_bits: int
    job_bits: int
    mode: ProgressMode
    packets_per_step: int
    enabled: bool
    scope: Scope
    marking: MarkingDecision
    def __init__(self, k: _Optional[float] = ..., tau: _Optional[_Union[Fraction, _Mapping]] = ..., t_win_us: _Optional[int] = ..., n_sample: _Optional[int] = ..., n_warmup: _Optional[int] = ..., alpha_max: _Optional[int] = ..., q_gate: _Optional[int] = ..., step_bits: _Optional[int] = ..., job_bits: _Optional[int] = ..., mode: _Optional[_Union[ProgressMode, str]] = ..., packets_per_step: _Optional[int] = ..., enabled: _Optional[bool] = ..., scope: _Optional[_Union[Scope, str]] = ..., marking: _Optional[_Union[MarkingDecision, _Mapping]] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("name", "rings", "queue_pairs", "match", "tag", "profile", "overrides", "uec_job_ids", "marking", "traffic", "tenant", "paths", "followers", "lease_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_PAIRS_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    UEC_JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    MARKING_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    rings: _containers.RepeatedCompositeFieldContainer[Ring]
    queue_pairs: _containers.RepeatedCompositeFieldContainer[QueuePair]
    match: MatchKind
    tag: Tag
    profile: str
    overrides: MarkerOverrides
    uec_job_ids: _containers.RepeatedScalarFieldContainer[int]
    marking: MarkingChoice
    traffic: Traffic
    tenant: str
    paths: PathsChoice
    followers: Followers
    lease_s: int
    def __init__(self, name: _Optional[str] = ..., rings: _Optional[_Iterable[_Union[Ring, _Mapping]]] = ..., queue_pairs: _Optional[_Iterable[_Union[QueuePair, _Mapping]]] = ..., match: _Optional[_Union[MatchKind, str]] = ..., tag: _Optional[_Union[Tag, _Mapping]] = ..., profile: _Optional[str] = ..., overrides: _Optional[_Union[MarkerOverrides, _Mapping]] = ..., uec_job_ids: _Optional[_Iterable[int]] = ..., marking: _Optional[_Union[MarkingChoice, str]] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ..., tenant: _Optional[str] = ..., paths: _Optional[_Union[PathsChoice, str]] = ..., followers: _Optional[_Union[Followers, str]] = ..., lease_s: _Optional[int] = ...) -> None: ...

class PathHop(_message.Message):
    __slots__ = ("switch", "port")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    switch: str
    port: int
    def __init__(self, switch: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class PlannedPath(_message.Message):
    __slots__ = ("src", "dst", "dest_qp", "hops")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    DEST_QP_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    src: str
    dst: str
    dest_qp: int
    hops: _containers.RepeatedCompositeFieldContainer[PathHop]
    def __init__(self, src: _Optional[str] = ..., dst: _Optional[str] = ..., dest_qp: _Optional[int] = ..., hops: _Optional[_Iterable[_Union[PathHop, _Mapping]]] = ...) -> None: ...

class SwitchProgramming(_message.Message):
    __slots__ = ("switch", "phase", "detail", "cannot")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CANNOT_FIELD_NUMBER: _ClassVar[int]
    switch: str
    phase: _switches_pb2.SwitchPhase
    detail: str
    cannot: bool
    def __init__(self, switch: _Optional[str] = ..., phase: _Optional[_Union[_switches_pb2.SwitchPhase, str]] = ..., detail: _Optional[str] = ..., cannot: _Optional[bool] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "generation", "spec", "parameters", "programming", "created_unix_ms", "problem", "request_id", "lease_s", "lease_remaining_ms", "paths", "paths_choice", "owner", "moving")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMMING_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    PATHS_CHOICE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    id: int
    generation: int
    spec: JobSpec
    parameters: MarkerParameters
    programming: _containers.RepeatedCompositeFieldContainer[SwitchProgramming]
    created_unix_ms: int
    problem: str
    request_id: str
    lease_s: int
    lease_remaining_ms: int
    paths: _containers.RepeatedCompositeFieldContainer[PlannedPath]
    paths_choice: PathsChoice
    owner: str
    moving: str
    def __init__(self, id: _Optional[int] = ..., generation: _Optional[int] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., parameters: _Optional[_Union[MarkerParameters, _Mapping]] = ..., programming: _Optional[_Iterable[_Union[SwitchProgramming, _Mapping]]] = ..., created_unix_ms: _Optional[int] = ..., problem: _Optional[str] = ..., request_id: _Optional[str] = ..., lease_s: _Optional[int] = ..., lease_remaining_ms: _Optional[int] = ..., paths: _Optional[_Iterable[_Union[PlannedPath, _Mapping]]] = ..., paths_choice: _Optional[_Union[PathsChoice, str]] = ..., owner: _Optional[str] = ..., moving: _Optional[str] = ...) -> None: ...

class JobRef(_message.Message):
    __slots__ = ("name", "id", "generation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    generation: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("request_id", "spec", "rebalance")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    spec: JobSpec
    rebalance: bool
    def __init__(self, request_id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., rebalance: _Optional[bool] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("job", "lease_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    lease_s: int
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., lease_s: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("jobs", "state_interval_ms", "tenant")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    STATE_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobRef]
    state_interval_ms: int
    tenant: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobRef, _Mapping]]] = ..., state_interval_ms: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("kind", "job", "state")
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    kind: JobEventKind
    job: Job
    state: StateResponse
    def __init__(self, kind: _Optional[_Union[JobEventKind, str]] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., state: _Optional[_Union[StateResponse, _Mapping]] = ...) -> None: ...

class UpdateParametersRequest(_message.Message):
    __slots__ = ("job", "changes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    changes: MarkerOverrides
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., changes: _Optional[_Union[MarkerOverrides, _Mapping]] = ...) -> None: ...

class UpdateParametersResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("spec", "job", "rebalance")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    spec: JobSpec
    job: JobRef
    rebalance: bool
    def __init__(self, spec: _Optional[_Union[JobSpec, _Mapping]] = ..., job: _Optional[_Union[JobRef, _Mapping]] = ..., rebalance: _Optional[bool] = ...) -> None: ...

class PlanLink(_message.Message):
    __slots__ = ("src", "dst", "rate_bps", "edges_before", "edges_after", "edges_ecmp", "load_after", "load_ecmp")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    RATE_BPS_FIELD_NUMBER: _ClassVar[int]
    EDGES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EDGES_AFTER_FIELD_NUMBER: _ClassVar[int]
    EDGES_ECMP_FIELD_NUMBER: _ClassVar[int]
    LOAD_AFTER_FIELD_NUMBER: _ClassVar[int]
    LOAD_ECMP_FIELD_NUMBER: _ClassVar[int]
    src: str
    dst: str
    rate_bps: int
    edges_before: int
    edges_after: int
    edges_ecmp: float
    load_after: float
    load_ecmp: float
    def __init__(self, src: _Optional[str] = ..., dst: _Optional[str] = ..., rate_bps: _Optional[int] = ..., edges_before: _Optional[int] = ..., edges_after: _Optional[int] = ..., edges_ecmp: _Optional[float] = ..., load_after: _Optional[float] = ..., load_ecmp: _Optional[float] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("paths", "links", "inter_rack_edges", "intra_rack_edges", "max_load", "bound", "ecmp_max_load", "gain", "moved_jobs", "reason")
    PATHS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    INTER_RACK_EDGES_FIELD_NUMBER: _ClassVar[int]
    INTRA_RACK_EDGES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOAD_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    ECMP_MAX_LOAD_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    MOVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedCompositeFieldContainer[PlannedPath]
    links: _containers.RepeatedCompositeFieldContainer[PlanLink]
    inter_rack_edges: int
    intra_rack_edges: int
    max_load: float
    bound: float
    ecmp_max_load: float
    gain: float
    moved_jobs: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, paths: _Optional[_Iterable[_Union[PlannedPath, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[PlanLink, _Mapping]]] = ..., inter_rack_edges: _Optional[int] = ..., intra_rack_edges: _Optional[int] = ..., max_load: _Optional[float] = ..., bound: _Optional[float] = ..., ecmp_max_load: _Optional[float] = ..., gain: _Optional[float] = ..., moved_jobs: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class RebalanceRequest(_message.Message):
    __slots__ = ("dry_run",)
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: _Optional[bool] = ...) -> None: ...

class RebalanceResponse(_message.Message):
    __slots__ = ("moved_jobs", "max_load_before", "max_load_after")
    MOVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOAD_BEFORE_FIELD_NUMBER: _ClassVar[int]
    MAX_LOAD_AFTER_FIELD_NUMBER: _ClassVar[int]
    moved_jobs: _containers.RepeatedScalarFieldContainer[str]
    max_load_before: float
    max_load_after: float
    def __init__(self, moved_jobs: _Optional[_Iterable[str]] = ..., max_load_before: _Optional[float] = ..., max_load_after: _Optional[float] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ...) -> None: ...

class StateResponse(_message.Message):
    __slots__ = ("job", "switches")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    job: Job
    switches: _containers.RepeatedCompositeFieldContainer[SwitchJobState]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., switches: _Optional[_Iterable[_Union[SwitchJobState, _Mapping]]] = ...) -> None: ...

class BlockState(_message.Message):
    __slots__ = ("block", "egress_ports", "generation", "step_min", "psn_rec", "alpha", "cnt_total", "cnt_op", "win_start_us", "now_us", "error")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    EGRESS_PORTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_MIN_FIELD_NUMBER: _ClassVar[int]
    PSN_REC_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    CNT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CNT_OP_FIELD_NUMBER: _ClassVar[int]
    WIN_START_US_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    block: int
    egress_ports: _containers.RepeatedScalarFieldContainer[int]
    generation: int
    step_min: int
    psn_rec: int
    alpha: int
    cnt_total: int
    cnt_op: int
    win_start_us: int
    now_us: int
    error: str
    def __init__(self, block: _Optional[int] = ..., egress_ports: _Optional[_Iterable[int]] = ..., generation: _Optional[int] = ..., step_min: _Optional[int] = ..., psn_rec: _Optional[int] = ..., alpha: _Optional[int] = ..., cnt_total: _Optional[int] = ..., cnt_op: _Optional[int] = ..., win_start_us: _Optional[int] = ..., now_us: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class JobCounters(_message.Message):
    __slots__ = ("data", "marks", "red_marks", "corrections", "advances")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    RED_MARKS_FIELD_NUMBER: _ClassVar[int]
    CORRECTIONS_FIELD_NUMBER: _ClassVar[int]
    ADVANCES_FIELD_NUMBER: _ClassVar[int]
    data: int
    marks: int
    red_marks: int
    corrections: int
    advances: int
    def __init__(self, data: _Optional[int] = ..., marks: _Optional[int] = ..., red_marks: _Optional[int] = ..., corrections: _Optional[int] = ..., advances: _Optional[int] = ...) -> None: ...

class SwitchJobState(_message.Message):
    __slots__ = ("switch", "blocks", "counters", "error", "read_unix_ms")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    READ_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    blocks: _containers.RepeatedCompositeFieldContainer[BlockState]
    counters: JobCounters
    error: str
    read_unix_ms: int
    def __init__(self, switch: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[BlockState, _Mapping]]] = ..., counters: _Optional[_Union[JobCounters, _Mapping]] = ..., error: _Optional[str] = ..., read_unix_ms: _Optional[int] = ...) -> None: ...
