"""The deparser as Python: patch the frame in place, or put it together anew."""

from __future__ import annotations

from ringstep.softswitch import layout
from ringstep.softswitch.model import FieldRef
from ringstep.softswitch.pyir import Body, Branch, Effect, Return
from ringstep.softswitch.scope import Scope, plus


class DeparserGenerator:
    """Translates the deparser of one program; the parser must have been looked at before."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def generate(self) -> Body:
        """Returns the frame."""
        if not self._scope.fixed_layout:
            return self._reassemble()
        in_place = self._patch_in_place()
        if not self._scope.layout_changes:
            return in_place
        return [Branch([(self._scope.moved(), self._reassemble())]), *in_place]

    def _patch_in_place(self) -> Body:
        """The frame as it came, with the written headers put over it."""
        patched: Body = []
        for name in self._scope.program.deparser:
            if self._scope.is_written(name) and name in self._scope.extracted:
                condition = f"{self._scope.dirty_var(name)} and {self._scope.valid_var(name)}"
                patched.append(
                    Branch([(condition, self._patches(name, "out", self._scope.at_var(name)))])
                )
        if not patched:
            return [Return("data")]
        return [Effect("out = bytearray(data)"), *patched, Return("bytes(out)")]

    def _patches(self, name: str, buffer: str, base: str) -> Body:
        header = self._scope.program.headers[name]
        names = layout.covered(header, self._scope.written_fields[name])
        values = {n: self._scope.field_var(FieldRef(name, n)) for n in names}
        body: Body = []
        for patch in layout.plan_patch(header, values):
            at = plus(base, patch.offset)
            if patch.fmt == "B":
                body.append(Effect(f"{buffer}[{at}] = {patch.expressions[0]}"))
            else:
                pack = self._scope.struct(patch.fmt, "pack_into")
                body.append(Effect(f"{pack}({buffer}, {at}, {', '.join(patch.expressions)})"))
        return body

    def _reassemble(self) -> Body:
        """All valid headers in the deparser's order, then the payload.

        Runs of headers that lie side by side in the frame and were not written are copied as one
        slice.
        """
        body: Body = [Effect('out = b""'), Effect("start = end = 0")]
        flush = Branch([("end > start", [Effect("out += data[start:end]")])])
        for name in self._scope.program.deparser:
            header = self._scope.program.headers[name]
            if name not in self._scope.extracted and name not in self._scope.added:
                continue
            at = self._scope.at_var(name)
            clean: Body = [
                Branch([(f"{at} != end", [flush, Effect(f"start = {at}")])]),
                Effect(f"end = {plus(at, header.size)}"),
            ]
            if not self._scope.is_written(name):
                body.append(Branch([(self._scope.valid_var(name), clean)]))
                continue
            source = (
                f"bytearray({header.size})"
                if name in self._scope.added
                else f"bytearray(data[{at}:{plus(at, header.size)}])"
            )
            written_anew: Body = [
                flush,
                Effect(f"buffer = {source}"),
                *self._patches(name, "buffer", "0"),
                Effect("out += buffer"),
                Effect(f"start = end = {plus(at, header.size)}"),
            ]
            emit: Body = [Branch([(self._scope.dirty_var(name), written_anew)], clean)]
            body.append(Branch([(self._scope.valid_var(name), emit)]))
        payload = self._scope.payload_var()
        body.append(
            Branch(
                [(f"{payload} == end", [Return("out + data[start:]")])],
                [Return(f"out + data[start:end] + data[{payload}:]")],
            )
        )
        return body
