"""Why a program cannot be loaded."""

from __future__ import annotations


class PipelineError(Exception):
    """The BMv2 JSON or the P4Info is broken, or the two do not belong together."""


class UnsupportedConstruct(PipelineError):
    """The program uses something this switch does not execute.

    `construct` names it, `where` says where in the JSON (and in the P4 source, where p4c noted
    that) it stands.
    """

    def __init__(self, construct: str, where: str) -> None:
        super().__init__(f"{construct} is not supported ({where})")
        self.construct = construct
        self.where = where
