"""TOML files checked against pydantic models, with messages for the person who wrote the file.

Every problem is reported at once, as ``file:line: key.path: what is wrong; what would be right``.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]
"""Keys and list positions (from 0) that lead to a value."""


class FileError(ValueError):
    """A file that cannot be used; ``problems`` holds one line per mistake."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class TomlTable(BaseModel):
    """Base of the models of TOML tables: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


_T = TypeVar("_T", bound=TomlTable)


class _Lines:
    """Finds the line of a key in TOML source, as far as one can without a full parser.

    Headers and bare keys at the start of a line are found; a key inside an inline table gets
    the line of the table that holds it.
    """

    _HEADER = re.compile(r"^\s*(\[\[?)\s*([A-Za-z0-9_.-]+)\s*\]\]?\s*(?:#.*)?$")
    _KEY = re.compile(r'^\s*["\']?([A-Za-z0-9_-]+)["\']?\s*[.=]')

    def __init__(self, text: str) -> None:
        self._lines: dict[Location, int] = {}
        counts: dict[str, int] = {}
        table: Location = ()
        for number, line in enumerate(text.splitlines(), start=1):
            if header := self._HEADER.match(line):
                name = header.group(2)
                parts = tuple(name.split("."))
                if header.group(1) == "[[":
                    index = counts.get(name, 0)
                    counts[name] = index + 1
                    table = (*parts, index)
                elif parts[0] in counts:
                    table = (parts[0], counts[parts[0]] - 1, *parts[1:])
                else:
                    table = parts
                self._lines.setdefault(table, number)
            elif key := self._KEY.match(line):
                self._lines.setdefault((*table, key.group(1)), number)

    def of(self, location: Location) -> int | None:
        """Return the 1-based line of a location, or of the nearest table around it."""
        for end in range(len(location), 0, -1):
            if (line := self._lines.get(location[:end])) is not None:
                return line
        return None


class Problems:
    """Collects what is wrong with one file, and raises it all together in the file's order."""

    def __init__(self, text: str, source: str, error: type[FileError] = FileError) -> None:
        self._source = source
        self._lines = _Lines(text)
        self._error = error
        self._found: list[tuple[int, str]] = []

    def add(self, location: Location, text: str) -> None:
        """Note one problem."""
        line = self._lines.of(location)
        where = f"{self._source}:{line}" if line is not None else self._source
        path = path_text(location)
        self._found.append((line or 0, f"{where}: {path}: {text}" if path else f"{where}: {text}"))

    def raise_if_any(self) -> None:
        """Raise what was noted.

        Raises:
            FileError: something was.
        """
        if self._found:
            self._found.sort(key=lambda item: item[0])
            raise self._error(self._source, [text for _, text in self._found])


def path_text(location: Location) -> str:
    """Return a location as people write it, list positions from 1: ``link[2].rate``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part + 1}]"
        else:
            path += f".{part}" if path else part
    return path


def read_text(path: Path, what: str, error: type[FileError] = FileError) -> str:
    """Return the text of a file; ``what`` says what kind of file is needed.

    Raises:
        FileError: the file cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as reason:
        raise error(
            str(path), [f"{path}: cannot be read ({reason.strerror}); give the path of {what}"]
        ) from None
    except UnicodeDecodeError as reason:
        raise error(
            str(path), [f"{path}: not UTF-8 at byte {reason.start}; TOML files are UTF-8"]
        ) from None


def parse_toml(
    text: str,
    source: str,
    model: type[_T],
    examples: Mapping[str, str] | None = None,
    error: type[FileError] = FileError,
) -> _T:
    """Return TOML text as an instance of ``model``.

    ``examples`` holds, per key, what a message shows where the key is missing.

    Raises:
        FileError: not TOML, or not what the model describes; all problems found are listed.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise error(source, [_toml_problem(source, reason)]) from None
    try:
        return model.model_validate(data)
    except ValidationError as reason:
        problems = Problems(text, source, error)
        for details in reason.errors():
            problems.add(*_explain(details, model, examples or {}))
        problems.raise_if_any()
        raise AssertionError("a validation error without details") from reason


def _toml_problem(source: str, error: tomllib.TOMLDecodeError) -> str:
    message = str(error)
    match = re.search(r"\(at line (\d+), column (\d+)\)$", message)
    if match is None:
        return f"{source}: not TOML: {message}"
    reason = message[: match.start()].strip()
    return f"{source}:{match.group(1)}:{match.group(2)}: not TOML: {reason}"


def _explain(
    details: ErrorDetails, model: type[BaseModel], examples: Mapping[str, str]
) -> tuple[Location, str]:
    location: Location = details["loc"]
    kind = details["type"]
    value = details["input"]
    context: dict[str, Any] = details.get("ctx", {})
    if kind == "extra_forbidden":
        return location, _unknown_key(location, model)
    if kind == "missing":
        key = str(location[-1])
        return location[:-1], f"{key!r} is missing; write for example {examples.get(key, key)}"
    if kind == "value_error":
        return location, str(context["error"])
    if kind == "literal_error":
        return location, f"{value!r} is not one of {context['expected']}"
    if kind in {"list_type", "tuple_type", "model_type", "model_attributes_type"}:
        header = (
            f"[[{location[0]}]]"
            if kind in {"list_type", "tuple_type"}
            else f"[{path_text(location)}]"
        )
        return location, f"{value!r} is not a table; write it as {header}"
    if kind == "too_short":
        return location, f"is empty; write {examples.get(str(location[-1]), 'at least one')}"
    text = details["msg"]
    return location, f"{value!r} is not usable: {text[0].lower()}{text[1:]}"


def _unknown_key(location: Location, model: type[BaseModel]) -> str:
    key = str(location[-1])
    fields = _model_at(model, location[:-1]).model_fields
    known = [field.alias or name for name, field in fields.items()]
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown key; {hint}known keys here: {', '.join(known)}"


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel]:
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _table_in(model.model_fields[part].annotation) or model
    return model


def _table_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(
        (found for inner in get_args(annotation) if (found := _table_in(inner)) is not None), None
    )
