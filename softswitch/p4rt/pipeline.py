"""Forwarding-pipeline configs: verify, save, commit (RPCs Set/GetForwardingPipelineConfig).

A config is compiled as a whole before anything changes, so a config that is refused leaves the
running pipeline and its state untouched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from finsy.proto import p4i, p4r

from ringstep.softswitch import tables as t
from ringstep.softswitch.errors import PipelineError
from ringstep.softswitch.p4rt.digests import DigestBook
from ringstep.softswitch.p4rt.errors import invalid, not_found, unimplemented
from ringstep.softswitch.p4rt.schema import Schema, build_schema

log = logging.getLogger(__name__)

EntryId = tuple[str, tuple[t.Match, ...], int]
ReplicaEntry = p4r.MulticastGroupEntry | p4r.CloneSessionEntry


class SwitchLike(Protocol):
    """What the server needs of `ringstep.softswitch.engine.Switch`."""

    @property
    def device_id(self) -> int:
        """P4Runtime device id, above 0."""

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever reads or changes state that packets also use."""

    def commit(self, pipeline: t.Pipeline) -> None:
        """Make `pipeline`, with the state it holds, the one that processes packets."""


Compiler = Callable[[p4i.P4Info, str], t.Pipeline]
"""Compiles BMv2 JSON; raises an exception whose text says what is wrong."""


@dataclass(slots=True)
class Loaded:
    """One verified config with its schema, its state and what only P4Runtime knows of it.

    `one_shots` holds (action_selection_mode, size_semantics) of every entry programmed one-shot,
    by profile name. `default_metadata` holds (metadata, controller_metadata) of default entries
    by table name. `replicas` holds the multicast groups and clone sessions as they were written,
    by ("multicast group" or "clone session", id). `digests` are those that a client asked for.
    """

    config: p4r.ForwardingPipelineConfig
    schema: Schema
    pipeline: t.Pipeline
    one_shots: dict[str, dict[EntryId, tuple[int, int]]] = field(default_factory=dict)
    default_metadata: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    replicas: dict[tuple[str, int], ReplicaEntry] = field(default_factory=dict)
    digests: DigestBook = field(default_factory=DigestBook)


class ConfigStore:
    """The configs of one device. Not thread-safe: the server calls it under its write lock.

    `current` is the config that Read and Write refer to: the saved one from VERIFY_AND_SAVE on,
    the running one otherwise. `running` is the one that processes packets.
    """

    def __init__(self, switch: SwitchLike, compiler: Compiler) -> None:
        self._switch = switch
        self._compiler = compiler
        self.running: Loaded | None = None
        self.saved: Loaded | None = None

    @property
    def current(self) -> Loaded | None:
        """The config that entity messages refer to."""
        return self.saved or self.running

    def set(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        """Carry out one SetForwardingPipelineConfig whose sender was found to be the primary.

        Raises INVALID_ARGUMENT (no config, config not realizable, config beside COMMIT), NOT_FOUND
        (COMMIT without a saved config), UNIMPLEMENTED (RECONCILE_AND_COMMIT).
        """
        actions = p4r.SetForwardingPipelineConfigRequest
        match request.action:
            case actions.VERIFY:
                self._verify(request)
            case actions.VERIFY_AND_SAVE:
                self.saved = self._verify(request)
            case actions.VERIFY_AND_COMMIT:
                self._commit(self._verify(request))
            case actions.COMMIT:
                if request.HasField("config"):
                    raise invalid("COMMIT takes no config; it realizes the saved one")
                if self.saved is None:
                    raise not_found("COMMIT: no saved config; send VERIFY_AND_SAVE first")
                self._commit(self.saved)
            case actions.RECONCILE_AND_COMMIT:
                raise unimplemented(
                    "RECONCILE_AND_COMMIT: this switch cannot carry state from one program to "
                    "another; use VERIFY_AND_COMMIT and write the entries again"
                )
            case _:
                raise invalid(
                    f"action {request.action} is not VERIFY, VERIFY_AND_SAVE, VERIFY_AND_COMMIT "
                    "or COMMIT"
                )

    def get(
        self, response_type: p4r.GetForwardingPipelineConfigRequest.ResponseType.ValueType
    ) -> p4r.ForwardingPipelineConfig | None:
        """Return the parts asked for of the current config, None where there is none."""
        if self.current is None:
            return None
        config = self.current.config
        kinds = p4r.GetForwardingPipelineConfigRequest
        reply = p4r.ForwardingPipelineConfig()
        if response_type not in kinds.ResponseType.values():
            raise invalid(f"response_type {response_type} is not one of the specification's")
        if response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            reply.p4info.CopyFrom(config.p4info)
        if response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            reply.p4_device_config = config.p4_device_config
        if config.HasField("cookie"):
            reply.cookie.CopyFrom(config.cookie)
        return reply

    def _commit(self, loaded: Loaded) -> None:
        self._switch.commit(loaded.pipeline)
        log.info("pipeline committed: %d tables", len(loaded.schema.tables))
        self.running = loaded
        self.saved = None

    def _verify(self, request: p4r.SetForwardingPipelineConfigRequest) -> Loaded:
        if not request.HasField("config"):
            raise invalid("config is missing; give p4info and p4_device_config (BMv2 JSON)")
        config = p4r.ForwardingPipelineConfig()
        config.CopyFrom(request.config)
        if not config.HasField("p4info"):
            raise invalid("config.p4info is missing")
        if not config.p4_device_config:
            raise invalid("config.p4_device_config is empty; give the BMv2 JSON of p4c-bm2-ss")
        try:
            json_text = config.p4_device_config.decode()
        except UnicodeDecodeError as error:
            raise invalid(f"config.p4_device_config is not BMv2 JSON: {error}") from None
        schema = build_schema(config.p4info)
        try:
            pipeline = self._compiler(config.p4info, json_text)
        except PipelineError as error:
            raise invalid(f"the pipeline cannot be realized: {error}") from error
        except Exception as error:  # JSON of an unforeseen shape is refused like any other
            log.exception("the pipeline compiler failed")
            raise invalid(
                f"the pipeline cannot be realized: {type(error).__name__}: {error}"
            ) from error
        check_actions(schema, pipeline)
        check_digests(schema, pipeline)
        return Loaded(config, schema, pipeline)


def check_actions(schema: Schema, pipeline: t.Pipeline) -> None:
    """Raise INVALID_ARGUMENT where a table lacks an action that its P4Info promises.

    Everything else that P4Info and JSON must agree on is checked by the compiler.
    """
    for table in schema.tables.values():
        present = pipeline.tables[table.name].action_names
        for action, _ in table.actions.values():
            if action.name not in present:
                raise invalid(f"table {table.name}: action {action.name} is in P4Info, not in JSON")


def check_digests(schema: Schema, pipeline: t.Pipeline) -> None:
    """Raise INVALID_ARGUMENT where a digest has other values in P4Info than in the program."""
    for digest in schema.digests.values():
        actual = pipeline.digests.get(digest.name, ())
        if digest.layout.widths != actual:
            raise invalid(
                f"digest {digest.name}: P4Info has values of {digest.layout.widths} bits, "
                f"the BMv2 JSON of {actual}"
            )
