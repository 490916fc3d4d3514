"""Commands of a group that are loaded once somebody asks for them.

A coordinator starts beside every training job, and starts again where it died; what it has no use
for (the models' training, the calibration, the reports) would be half of the time that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import typer
from typer.core import TyperGroup

Add = Callable[[typer.Typer], None]
"""Imports a command and adds it to an application."""


class _Commands(MutableMapping[str, Any]):
    """Click's commands by name; the listing has the ones still to be loaded at its end."""

    def __init__(self, ready: Mapping[str, Any], later: Mapping[str, Add]) -> None:
        self._found: dict[str, Any] = {**ready, **dict.fromkeys(later)}
        self._later = later

    def __getitem__(self, name: str) -> Any:
        if self._found[name] is None:
            app = typer.Typer()
            self._later[name](app)
            self._found[name] = typer.main.get_group(app).commands[name]
        return self._found[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def group_with(later: Mapping[str, Add]) -> type[TyperGroup]:
    """Return what to give ``typer.Typer`` as ``cls`` for a group with these commands too."""

    class Group(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = _Commands(self.commands, later)

    return Group
