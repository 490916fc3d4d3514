"""TOML documents made of layers: a file, what it extends, and keys set on the command line.

Every value remembers where it was written, so that a message names the file and line that a person
has to change. Built on :mod:`ringstep.fabric.tomlfile`, which reads one file.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ringstep.fabric.tomlfile import FileError, Location, TomlTable, path_text, read_text

_T = TypeVar("_T", bound=TomlTable)
_HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.\- ]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r'^\s*["\']?([A-Za-z0-9_-]+)["\']?\s*[.=]')
_PART = re.compile(r"^([A-Za-z0-9_-]+)(?:\[(\d+)\])?$")
_BARE = re.compile(r"^[A-Za-z0-9_-]+$")
COMMAND_LINE = "--set"


def find_lines(text: str) -> dict[Location, int]:
    """Return the 1-based line of every table header and bare key of TOML source.

    A key inside an inline table has no line of its own; its table has.
    """
    lines: dict[Location, int] = {}
    latest: dict[Location, int] = {}
    table: Location = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            location: Location = ()
            parts = [part.strip() for part in header.group(2).split(".")]
            for position, part in enumerate(parts):
                location = (*location, part)
                if position + 1 == len(parts) and header.group(1) == "[[":
                    latest[location] = latest.get(location, -1) + 1
                if location in latest:
                    location = (*location, latest[location])
            table = location
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, key.group(1)), number)
    return lines


@dataclass(frozen=True)
class Layer:
    """One source of values: a file with its text, or keys from the command line."""

    source: str
    data: Mapping[str, Any]
    text: str = ""

    def depth_of(self, location: Location) -> int:
        """Return how many parts of a location this layer holds."""
        value: Any = self.data
        for depth, part in enumerate(location):
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return depth
        return len(location)

    def where(self, location: Location) -> tuple[int, str]:
        """Return line (0: none) and ``source:line`` of a location or the nearest table around."""
        lines = find_lines(self.text)
        for end in range(len(location), 0, -1):
            # A list of tables is where its first table is.
            line = lines.get(location[:end], lines.get((*location[:end], 0)))
            if line is not None:
                return line, f"{self.source}:{line}"
        return 0, self.source


@dataclass(frozen=True)
class Document:
    """Layers merged, the first one strongest: tables merge key by key, everything else replaces."""

    layers: tuple[Layer, ...]
    data: Mapping[str, Any]
    set_at: Mapping[Location, str] = field(default_factory=dict)
    """Locations that the command line set, and the text of that option."""

    @property
    def source(self) -> str:
        """The file that was asked for."""
        return self.layers[0].source if self.layers else "scenario"

    @staticmethod
    def of(layers: Sequence[Layer]) -> Document:
        """Return the layers merged."""
        data: dict[str, Any] = {}
        for layer in reversed(layers):
            _merge(data, layer.data)
        return Document(tuple(layers), data)

    def setting(self, key: str, value: Any) -> Document:
        """Return the document with the value at a key path, such as ``job[1].chunk``, replaced.

        List positions count from 1; a list without a position means all its tables.

        Raises:
            FileError: the path cannot be followed.
        """
        data = copy.deepcopy(dict(self.data))
        text = f"{COMMAND_LINE} {key}={_inline(value)}"
        found = dict(self.set_at)
        for location in _locations(data, key):
            _put(data, location, copy.deepcopy(value), text)
            found[location] = text
        return Document(self.layers, data, found)

    def where(self, location: Location) -> tuple[int, int, str]:
        """Return (layer, line, text) of where a location, or what is around it, was written."""
        for end in range(len(location), 0, -1):
            if (text := self.set_at.get(location[:end])) is not None:
                return -1, 0, text
        if not self.layers:
            return 0, 0, self.source
        if not any(layer.depth_of(location) == len(location) for layer in self.layers):
            # No file holds it: a key below it that the command line set made it.
            for at, text in self.set_at.items():
                if location and at[: len(location)] == location:
                    return -1, 0, text
        depths = [layer.depth_of(location) for layer in self.layers]
        strongest = depths.index(max(depths))
        line, text = self.layers[strongest].where(location)
        return strongest, line, text


class Findings:
    """Collects what is wrong with a document, and raises it all together in the file's order."""

    def __init__(self, document: Document, error: type[FileError]) -> None:
        self._document = document
        self._error = error
        self._found: list[tuple[int, int, str]] = []

    def add(self, location: Location, text: str) -> None:
        """Note one problem."""
        layer, line, where = self._document.where(location)
        path = path_text(location)
        self._found.append(
            (layer, line, f"{where}: {path}: {text}" if path else f"{where}: {text}")
        )

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self._found)

    def raise_if_any(self) -> None:
        """Raise what was noted.

        Raises:
            FileError: something was (of the type given).
        """
        if self._found:
            found = sorted(self._found, key=lambda item: item[:2])
            unique = list(dict.fromkeys(text for _, _, text in found))
            raise self._error(self._document.source, unique)


def read_layer(path: Path, what: str, error: type[FileError]) -> Layer:
    """Return a TOML file as a layer.

    Raises:
        FileError: it cannot be read, or is not TOML.
    """
    return parse_layer(read_text(path, what, error), str(path), error)


def parse_layer(text: str, source: str, error: type[FileError]) -> Layer:
    """Return TOML text as a layer.

    Raises:
        FileError: it is not TOML.
    """
    try:
        return Layer(source, tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as reason:
        message = str(reason)
        match = re.search(r"\(at line (\d+), column (\d+)\)$", message)
        where = f"{source}:{match.group(1)}:{match.group(2)}" if match else source
        told = message[: match.start()].strip() if match else message
        raise error(source, [f"{where}: not TOML: {told}"]) from None


def parse_setting(text: str) -> tuple[str, Any]:
    """Return key path and value of ``key=value``; what is no TOML value is taken as a string.

    Raises:
        FileError: no key, or no value.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not value:
        raise FileError(
            COMMAND_LINE, [f"{COMMAND_LINE} {text}: write key=value, such as cc.preset=connectx"]
        )
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def build(
    document: Document,
    model: type[_T],
    examples: Mapping[str, str],
    error: type[FileError],
) -> _T:
    """Return a document as an instance of ``model``.

    ``examples`` holds, per key, what a message shows where the key is missing.

    Raises:
        FileError: not what the model describes; all problems found are listed.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as reason:
        findings = Findings(document, error)
        for details in reason.errors():
            findings.add(*_explain(details, model, examples))
        findings.raise_if_any()
        raise AssertionError("a validation error without details") from reason


def dump(data: Mapping[str, Any], comments: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return nested tables as TOML text; ``comments`` holds lines to put below a table's header."""
    lines: list[str] = []
    _write_table(lines, "", data, comments or {})
    return "\n".join(lines).strip("\n") + "\n"


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def _locations(data: Mapping[str, Any], key: str) -> list[Location]:
    """All places that a key path names."""
    places: list[tuple[Location, Any]] = [((), data)]
    parts = key.split(".")
    for position, part in enumerate(parts):
        match = _PART.match(part)
        if match is None:
            raise FileError(
                COMMAND_LINE,
                [f"{COMMAND_LINE} {key}: {part!r} is no key; write a.b or job[1].chunk"],
            )
        name, index = match.group(1), match.group(2)
        last = position + 1 == len(parts)
        following: list[tuple[Location, Any]] = []
        for location, value in places:
            below = value.get(name) if isinstance(value, dict) else None
            here = (*location, name)
            if index is not None:
                if not isinstance(below, list) or not 1 <= int(index) <= len(below):
                    there = len(below) if isinstance(below, list) else 0
                    raise FileError(
                        COMMAND_LINE,
                        [f"{COMMAND_LINE} {key}: {path_text(here)} has {there}, no {index}"],
                    )
                following.append(((*here, int(index) - 1), below[int(index) - 1]))
            elif isinstance(below, list) and not last and below and isinstance(below[0], dict):
                following += [((*here, i), item) for i, item in enumerate(below)]
            else:
                following.append((here, below))
        places = following
    return [location for location, _ in places]


def _put(data: dict[str, Any], location: Location, value: Any, text: str) -> None:
    here: Any = data
    for part in location[:-1]:
        if isinstance(part, str):
            if not isinstance(here, dict):
                raise FileError(COMMAND_LINE, [f"{text}: {part!r} is not inside a table"])
            here = here.setdefault(part, {})
        else:
            here = here[part]
    if not isinstance(here, (dict, list)):
        raise FileError(
            COMMAND_LINE, [f"{text}: {path_text(location[:-1])} is a value, not a table"]
        )
    key: Any = location[-1]
    here[key] = value


def _explain(
    details: ErrorDetails, model: type[BaseModel], examples: Mapping[str, str]
) -> tuple[Location, str]:
    location, here = _follow(model, details["loc"])
    kind = details["type"]
    value = details["input"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind == "extra_forbidden":
        return location, _unknown_key(str(location[-1]), here)
    if kind == "missing":
        key = str(location[-1])
        return location[:-1], f"{key!r} is missing; write for example {examples.get(key, key)}"
    if kind == "value_error":
        return location, str(context["error"])
    if kind == "literal_error":
        return location, _not_one_of(value, str(context["expected"]))
    if kind == "union_tag_not_found":
        key = str(context["discriminator"]).strip("'")
        return location, f"{key!r} is missing; write for example {examples.get(key, key)}"
    if kind == "union_tag_invalid":
        key = str(context["discriminator"]).strip("'")
        return (*location, key), _not_one_of(context["tag"], str(context["expected_tags"]))
    if kind in {"list_type", "tuple_type", "dict_type", "model_type", "model_attributes_type"}:
        header = path_text(tuple(part for part in location if isinstance(part, str)))
        if kind in {"list_type", "tuple_type"}:
            return location, f"{value!r} is not a list; write [...], or tables [[{header}]]"
        return location, f"{value!r} is not a table; write it as [{header}]"
    if kind == "bool_type" or kind == "bool_parsing":
        return location, f"{value!r} is neither true nor false"
    if kind == "string_type":
        return location, f"{value!r} is not text; put it in quotes"
    text = details["msg"]
    return location, f"{value!r} is not usable: {text[0].lower()}{text[1:]}"


def _not_one_of(value: object, expected: str) -> str:
    names = re.findall(r"'([^']+)'", expected)
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{value!r} is not one of these; {hint}write {', '.join(names) or expected}"


def _unknown_key(key: str, model: type[BaseModel]) -> str:
    known = list(model.model_fields)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown key; {hint}known keys here: {', '.join(known)}"


def _follow(model: type[BaseModel], location: Location) -> tuple[Location, type[BaseModel]]:
    """Return a location without the tags that unions put into it, and the model around its end."""
    clean: list[str | int] = []
    here = model
    tables: dict[str, type[BaseModel]] = {}
    for position, part in enumerate(location):
        if isinstance(part, str) and part in tables and position:
            here, tables = tables[part], {}
            continue
        clean.append(part)
        if isinstance(part, str) and part in here.model_fields:
            if position + 1 == len(location):
                break
            info = here.model_fields[part]
            found = _tables_in(info.annotation)
            tables = _by_tag(found, info)
            if len(found) == 1:
                here = found[0]
    return tuple(clean), here


def _tables_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is not None and inner:
        return [found for each in inner for found in _tables_in(each)]
    return []


def _by_tag(tables: Sequence[type[BaseModel]], _info: FieldInfo) -> dict[str, type[BaseModel]]:
    tags: dict[str, type[BaseModel]] = {}
    if len(tables) > 1:
        for table in tables:
            kind = table.model_fields.get("kind")
            for tag in get_args(kind.annotation) if kind is not None else ():
                tags[str(tag)] = table
    return tags


def _write_table(
    lines: list[str], name: str, data: Mapping[str, Any], comments: Mapping[str, Sequence[str]]
) -> None:
    later: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, Mapping) or _is_tables(value):
            later.append((key, value))
        else:
            lines.append(f"{_quoted(key)} = {_inline(value)}")
    for key, value in later:
        path = f"{name}.{_quoted(key)}" if name else _quoted(key)
        tables = value if _is_tables(value) else [value]
        for table in tables:
            header = f"[[{path}]]" if _is_tables(value) else f"[{path}]"
            lines += ["", header, *(f"# {text}" for text in comments.get(path, ()))]
            _write_table(lines, path, table, comments)


def _is_tables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], Mapping)


def _quoted(key: str) -> str:
    return key if _BARE.match(key) else json.dumps(key)


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_inline(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_quoted(k)} = {_inline(v)}' for k, v in value.items())}}}"
    return repr(value)
