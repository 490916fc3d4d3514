"""One way in for scenario files and the command line: a source, and options as plain values.

``astra:resnet50``, ``astra:FILE``, ``chakra:PREFIX``, ``json:FILE``, or the name of a model.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ringstep_ns3.workloads.astra import load_astra
from ringstep_ns3.workloads.chakra import read_chakra
from ringstep_ns3.workloads.generate import Training, train
from ringstep_ns3.workloads.layers import Model, gpt, resnet50, transformer, vgg16
from ringstep_ns3.workloads.model import Inner, Workload, WorkloadError


class WorkloadOptions(BaseModel):
    """What can be said about a workload; each source takes some of it.

    For every source: ``iterations``; ``compute_speedup`` divides computation times (Fig. 6 of the
    Symphony paper: 1 to 64); ``communication_scale`` multiplies sizes; ``overlap`` false runs one
    operation after the other; ``collectives``: one at a time per group ``in_order``, or
    ``concurrent``; ``model_parallel``: ranks per replica; ``inner``: which groups are neighbours.
    The rest as in :func:`.astra.AstraFile.workload`, :func:`.chakra.read_chakra`,
    :class:`.generate.Training`, :func:`.layers.transformer` and :func:`.layers.gpt`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    iterations: int = Field(1, ge=1)
    compute_speedup: float = Field(1.0, gt=0, allow_inf_nan=False)
    communication_scale: float = Field(1.0, gt=0, allow_inf_nan=False)
    overlap: bool = True
    collectives: Literal["in_order", "concurrent"] = "in_order"
    model_parallel: int | None = Field(None, ge=1)
    inner: Inner | None = None

    cycle_ns: float = Field(1.0, ge=0, allow_inf_nan=False)

    comm_groups: str = ""
    dims: tuple[int, ...] = ()
    ignore_missing: bool = False

    batch: int = Field(32, ge=1)
    device_flops: float = Field(100e12, gt=0, allow_inf_nan=False)
    element_bytes: int = Field(4, ge=1)
    bucket_bytes: int = Field(0, ge=0)
    wait: Literal["layer", "iteration"] = "iteration"

    d_model: int = Field(512, ge=1)
    d_ff: int = Field(2048, ge=1)
    heads: int = Field(8, ge=1)
    layers: int = Field(12, ge=1)
    encoder_layers: int = Field(6, ge=1)
    decoder_layers: int = Field(6, ge=1)
    vocabulary: int = Field(50_257, ge=1)
    context: int = Field(1024, ge=1)
    length: int = Field(128, ge=1)

    @field_validator("dims", mode="before")
    @classmethod
    def _split_dims(cls, value: object) -> object:
        """Take ``"8x4"`` for (8, 4): option tables hold scalars."""
        return tuple(value.split("x")) if isinstance(value, str) and value else value or ()


_COMMON = {
    "iterations",
    "compute_speedup",
    "communication_scale",
    "overlap",
    "collectives",
    "model_parallel",
    "inner",
}
_TRAINING = {"batch", "device_flops", "element_bytes", "bucket_bytes", "wait"}
_TRANSFORMER = {
    "d_model",
    "d_ff",
    "heads",
    "encoder_layers",
    "decoder_layers",
    "vocabulary",
    "length",
}
_GPT = {"layers", "d_model", "heads", "vocabulary", "context", "length"}

_FILES = {
    "astra": {"cycle_ns"},
    "chakra": {"comm_groups", "dims", "device_flops", "ignore_missing"},
    "json": set[str](),
}
_MODELS: Mapping[str, tuple[Callable[..., Model], dict[str, Any], set[str]]] = {
    "vgg16": (vgg16, {}, set()),
    "resnet50": (resnet50, {}, set()),
    "transformer": (transformer, {}, _TRANSFORMER),
    "transformer-big": (transformer, {"d_model": 1024, "d_ff": 4096, "heads": 16}, _TRANSFORMER),
    "gpt": (gpt, {}, _GPT),
    "gpt2": (gpt, {}, _GPT),
    "gpt2-xl": (gpt, {"layers": 48, "d_model": 1600, "heads": 25}, _GPT),
    "gpt3-175b": (gpt, {"layers": 96, "d_model": 12288, "heads": 96, "context": 2048}, _GPT),
}
MODELS = tuple(_MODELS)
"""Names of the models that :func:`build` generates."""


def build(
    source: str, options: Mapping[str, object] | None = None, base: Path | None = None
) -> Workload:
    """Return the workload of ``source`` with ``options`` applied.

    Relative paths count from ``base`` (default: the current directory).

    Raises:
        WorkloadError: an unknown source or option, an option this source does not take, a value
            out of range, or whatever is wrong with the file; one line per mistake.
    """
    scheme, colon, rest = source.partition(":")
    if colon:
        if scheme not in _FILES or not rest:
            raise WorkloadError(f"source {source!r} is not known; {_sources()}")
        takes = _COMMON | _FILES[scheme]
    elif source in _MODELS:
        takes = _COMMON | _TRAINING | _MODELS[source][2]
    else:
        close = difflib.get_close_matches(source, MODELS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else _sources()
        raise WorkloadError(f"source {source!r} is not known; {hint}")
    chosen = _checked(source, dict(options or {}), takes)
    if not colon:
        return _generated(source, chosen)
    workload = _read(scheme, rest, chosen, base or Path())
    return _finished(workload, chosen)


def _sources() -> str:
    return f"use astra:NAME_OR_FILE, chakra:PREFIX, json:FILE or one of {', '.join(MODELS)}"


def _checked(source: str, options: dict[str, object], takes: set[str]) -> WorkloadOptions:
    problems = []
    for name in options:
        if name in takes:
            continue
        if name in WorkloadOptions.model_fields:
            problems.append(
                f"option {name} does not apply to {source!r}; it takes {', '.join(sorted(takes))}"
            )
            continue
        close = difflib.get_close_matches(name, sorted(takes), n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(takes))}"
        problems.append(f"option {name!r} is not known; {hint}")
    if problems:
        raise WorkloadError(problems)
    try:
        return WorkloadOptions.model_validate(options)
    except ValidationError as error:
        raise WorkloadError(
            f"option {'.'.join(map(str, entry['loc']))} = {entry['input']!r}: {entry['msg']}"
            for entry in error.errors()
        ) from None


def _read(scheme: str, rest: str, chosen: WorkloadOptions, base: Path) -> Workload:
    if scheme == "astra":
        return load_astra(rest, base).workload(f"astra:{rest}", cycle_ns=chosen.cycle_ns)
    if scheme == "chakra":
        return read_chakra(
            base / rest,
            comm_groups=base / chosen.comm_groups if chosen.comm_groups else None,
            dims=chosen.dims,
            device_flops=chosen.device_flops if "device_flops" in chosen.model_fields_set else 0.0,
            ignore_missing=chosen.ignore_missing,
        )
    path = base / rest
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: {error}; give a file that can be read") from None
    return Workload.from_json(text, str(path))


def _generated(source: str, chosen: WorkloadOptions) -> Workload:
    make, preset, takes = _MODELS[source]
    given = {name: getattr(chosen, name) for name in takes & chosen.model_fields_set}
    training = Training(
        model_parallel=chosen.model_parallel or 1,
        inner=chosen.inner or Inner.MODEL,
        overlap=chosen.overlap,
        **{name: getattr(chosen, name) for name in _TRAINING & chosen.model_fields_set},
    )
    workload = train(make(**{**preset, **given}), training)
    return _finished(workload, chosen)


def _finished(workload: Workload, chosen: WorkloadOptions) -> Workload:
    if chosen.model_parallel is not None or chosen.inner is not None:
        size = chosen.model_parallel or workload.model_parallel
        if size is None:
            raise WorkloadError("option inner needs model_parallel with it for this source")
        workload = workload.with_model_parallel(size, chosen.inner)
    if chosen.compute_speedup != 1 or chosen.communication_scale != 1:
        workload = workload.scaled(
            compute=1 / chosen.compute_speedup, communication=chosen.communication_scale
        )
    if "iterations" in chosen.model_fields_set:
        workload = workload.with_iterations(chosen.iterations)
    if not chosen.overlap:
        return workload.serialized()
    return workload.in_order() if chosen.collectives == "in_order" else workload
