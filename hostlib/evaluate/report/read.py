"""Reads result files and holds them to their shape, before anything is made of them."""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Any,
    Final,
    NotRequired,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ringstep.hostlib.evaluate.report.shape import Card, Result, Table

OURS: Final = "dynamic"


class ReportError(ValueError):
    """A file is not a result, or cannot be written; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One environment.

    Attributes:
        name: short, no two alike.
        path: where it was read.
        data: the file's content.
    """

    name: str
    path: Path
    data: Result

    @property
    def ours(self) -> str:
        """The policy that the report is about."""
        return self.data.get("about", {}).get("policy", OURS)


def read(paths: Sequence[Path]) -> list[Measured]:
    """Return the environments in the order given.

    Raises:
        ReportError: no such file, no JSON, or not what ``tuner evaluate`` writes.
    """
    found: list[Measured] = []
    for path in paths:
        data = _load(path)
        name = data.get("about", {}).get("environment") or _name(data, path)
        same = sum(m.name == name or m.name.startswith(f"{name} (") for m in found)
        found.append(Measured(f"{name} ({same + 1})" if same else name, path, data))
    return found


def _name(data: Result, path: Path) -> str:
    """Return the first word that all environments of the file begin with, or the file's name."""
    words = {name.split(":")[0].split()[0] for name in data.get("environment", []) if name.strip()}
    return words.pop() if len(words) == 1 else path.stem


def _load(path: Path) -> Result:
    try:
        data = json.loads(
            path.read_text("utf-8"), parse_constant=lambda _: None, parse_float=_finite
        )
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not JSON: {error}") from None
    hints = get_type_hints(Result)
    if not isinstance(data, dict) or not data.keys() & hints.keys() - {"about", "seeds"}:
        raise ReportError(
            f"{path}: nothing in it that `ringstep tuner evaluate --json` writes, such as gains"
        )
    for key, hint in hints.items():
        if key in data and (wrong := _wrong(data[key], hint, key)):
            raise ReportError(f"{path}: {wrong}")
    if wrong := _first(_inconsistent(cast(Result, data))):
        raise ReportError(f"{path}: {wrong}")
    return cast(Result, data)


def _inconsistent(data: Result) -> Iterator[str]:
    """Yield what types cannot say: levels are numbers, lists that go together are as long."""
    levels: list[tuple[str, Iterable[str]]] = [
        *((f"gains.{n}", row) for n, row in data.get("gains", {}).items()),
        *((f"detection.{n}", row) for n, row in data.get("detection", {}).items()),
        *((f"rules.{n}.detection", rule["detection"]) for n, rule in data.get("rules", {}).items()),
        *((f"versus_autoccl.{n}.{regime}", row)
          for n, regimes in data.get("versus_autoccl", {}).items()
          for regime, row in regimes.items()),
        *((f"{key}.{n}.{label}", row)
          for key in ("sizes", "workloads", "ranks_per_node", "nodes")
          for n, rows in cast(dict[str, Table], data).get(key, {}).items()
          for label, row in rows.items()),
    ]  # fmt: skip
    for where, keys in levels:
        yield from (
            f"{where}.{k}: a level, such as 0.8, expected" for k in keys if not is_number(k)
        )
    for i, trace in enumerate(data.get("detection_traces", [])):
        calls, where = len(trace["ratio"]), f"detection_traces[{i}]"
        if not calls or len(trace["probability"]) != calls:
            yield f"{where}: {calls} ratios and {len(trace['probability'])} probabilities"
        for name, at in (("onset", trace["onset"]), ("found", trace["found"])):
            if at is not None and not 0 <= at < calls:
                yield f"{where}.{name}: {at} is no call of {calls}"
    for network, card in cast(dict[str, Card], data.get("training", {})).items():
        for i, row in enumerate(card["metrics"].get("curve", [])):
            if len(row) != 2:
                yield f"training.{network}.metrics.curve[{i}]: 2 numbers expected, found {len(row)}"
    for name, q in data.get("distributions", {"policies": {}})["policies"].items():
        if not q["p05"] <= q["p25"] <= q["p50"] <= q["p75"] <= q["p95"]:
            yield f"distributions.policies.{name}: percentiles that do not rise"


def is_number(text: str) -> bool:
    """Say whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _wrong(value: Any, hint: Any, where: str) -> str:
    """Return what is wrong with a value, and where; nothing: it has the shape."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return _wrong(value, arguments[0], where)
    if origin in (Union, types.UnionType):
        found = []
        for one in arguments:
            if not (wrong := _wrong(value, one, where)):
                return ""
            found.append(wrong)
        # What an object lacks says more than that it is no number.
        return max(found, key=lambda w: w.partition(":")[0].count("."))
    if is_typeddict(hint):
        return _wrong_object(value, hint, where)
    if origin is dict:
        if not isinstance(value, dict):
            return _not(value, "an object", where)
        return _first(_wrong(v, arguments[1], f"{where}.{k}") for k, v in value.items())
    if origin is list:
        if not isinstance(value, list):
            return _not(value, "a list", where)
        return _first(_wrong(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(value))
    if hint is type(None):
        return "" if value is None else _not(value, "null", where)
    if hint is str:
        return "" if isinstance(value, str) else _not(value, "a text", where)
    number = isinstance(value, int) or (hint is float and isinstance(value, float))
    if number and not isinstance(value, bool):
        return ""
    return _not(value, "a whole number" if hint is int else "a number", where)


@functools.cache
def _hints(hint: Any) -> dict[str, Any]:
    return get_type_hints(hint, include_extras=True)


def _wrong_object(value: Any, hint: Any, where: str) -> str:
    if not isinstance(value, dict):
        return _not(value, "an object", where)
    for key, one in _hints(hint).items():
        if key in value:
            if wrong := _wrong(value[key], one, f"{where}.{key}"):
                return wrong
        elif hint.__total__ and get_origin(one) is not NotRequired:
            return f"{where}.{key}: missing"
    return ""


def _first(found: Iterable[str]) -> str:
    return next((wrong for wrong in found if wrong), "")


def _not(value: Any, what: str, where: str) -> str:
    text = json.dumps(value)
    return f"{where}: {what} expected, found {text if len(text) < 40 else text[:37] + '...'}"
