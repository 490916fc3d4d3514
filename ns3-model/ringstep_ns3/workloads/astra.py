"""Reader for the text workloads of ASTRA-sim 1.0, and for the four published ones shipped here.

Line 1 names the parallelisation strategy, line 2 the number of layers; then comes a layer a line in
12 columns (13 in HYBRID_CUSTOMIZED). What a strategy does with the columns follows the training
loops of ASTRA-sim 1.0 (README of ``inputs/workload/ASTRA-sim-1.0``, ``workload/Workload.cc``).

Compute figures are cycles; ASTRA-sim's own clock makes one cycle one nanosecond, Chakra's
converter reads the same figures as microseconds. ``cycle_ns`` says which is meant.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

from ringstep_ns3.workloads.model import (
    Collective,
    Compute,
    Group,
    Inner,
    Kind,
    Operation,
    Workload,
    WorkloadError,
)

MAX_FIGURE = (1 << 62) - 1

PUBLISHED = {
    "resnet50": "Resnet50_DataParallel.txt",
    "transformer": "Transformer_HybridParallel.txt",
    "dlrm": "DLRM_HybridParallel.txt",
    "micro": "microAllReduce.txt",
}
"""Short names of the files of ASTRA-sim (MIT licence) that come with this package."""


class Strategy(StrEnum):
    """Line 1 of a file: which collectives run in which pass, over which ranks."""

    DATA = "DATA"
    MODEL = "MODEL"
    HYBRID_DATA_MODEL = "HYBRID_DATA_MODEL"
    HYBRID_MODEL_DATA = "HYBRID_MODEL_DATA"
    HYBRID_TRANSFORMER = "HYBRID_TRANSFORMER"
    HYBRID_TRANSFORMER_FWD_IN_BCKWD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
    HYBRID_DLRM = "HYBRID_DLRM"
    HYBRID_DLRM_ENHANCED = "HYBRID_DLRM_ENHANCED"
    HYBRID_CUSTOMIZED = "HYBRID_CUSTOMIZED"
    MICRO = "MICRO"
    DISTRIBUTED_INFERENCE = "DISTRIBUTED_INFERENCE"


_TRANSFORMERS = (Strategy.HYBRID_TRANSFORMER, Strategy.HYBRID_TRANSFORMER_FWD_IN_BCKWD)
_DLRMS = (Strategy.HYBRID_DLRM, Strategy.HYBRID_DLRM_ENHANCED)
_LAYER_STRATEGIES = (
    Strategy.DATA,
    Strategy.MODEL,
    Strategy.HYBRID_DATA_MODEL,
    Strategy.HYBRID_MODEL_DATA,
)

_KINDS: dict[str, Kind | None] = {
    "NONE": None,
    "ALLREDUCE": Kind.ALL_REDUCE,
    "ALLTOALL": Kind.ALL_TO_ALL,
    "ALLGATHER": Kind.ALL_GATHER,
    "REDUCESCATTER": Kind.REDUCE_SCATTER,
}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Phase:
    """One pass of one layer: computation in cycles, then a collective over bytes."""

    cycles: int
    kind: Kind | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """A line of the file. ``update_cycles`` follow each of its collectives.

    ``strategy`` is the 13th column, in HYBRID_CUSTOMIZED files only.
    """

    name: str
    forward: Phase
    input_gradient: Phase
    weight_gradient: Phase
    update_cycles: int
    strategy: Strategy | None = None


@dataclass(frozen=True, slots=True)
class AstraFile:
    """A text workload as it stands in its file.

    ``model_parallel``: ranks per replica (the two HYBRID_TRANSFORMER strategies).
    ``last_bottom_layer``: the layer after which DLRM waits for its embeddings. ``checkpoints`` and
    ``recompute_from``: layers that keep their input, and layers before whose backward pass the
    forward pass is run again from the checkpoint (HYBRID_TRANSFORMER_FWD_IN_BCKWD).
    """

    strategy: Strategy
    layers: tuple[Layer, ...]
    model_parallel: int | None = None
    last_bottom_layer: int | None = None
    checkpoints: tuple[int, ...] = ()
    recompute_from: tuple[int, ...] = ()

    def render(self) -> str:
        """Return the file's text; :func:`parse_astra` gives the same value back."""
        first = [self.strategy.value]
        if self.strategy in _TRANSFORMERS:
            first += ["model_parallel_NPU_group:", str(self.model_parallel)]
        if self.strategy is Strategy.HYBRID_TRANSFORMER_FWD_IN_BCKWD:
            for word, marks in (
                ("checkpoints:", self.checkpoints),
                ("checkpoint_initiates:", self.recompute_from),
            ):
                first += [word, str(len(marks)), *map(str, marks)]
        if self.strategy in _DLRMS:
            first.append(str(self.last_bottom_layer))
        lines = [" ".join(first), str(len(self.layers))]
        for layer in self.layers:
            columns = [layer.name, "-1"]
            for phase in (layer.forward, layer.input_gradient, layer.weight_gradient):
                columns += [str(phase.cycles), _KIND_NAMES[phase.kind], str(phase.bytes)]
            columns.append(str(layer.update_cycles))
            if layer.strategy is not None:
                columns.append(layer.strategy.value)
            lines.append("\t".join(columns))
        return "\n".join(lines) + "\n"

    def workload(
        self,
        name: str,
        *,
        cycle_ns: float = 1.0,
        iterations: int = 1,
        model_parallel: int | None = None,
    ) -> Workload:
        """Return what the file says as operations.

        ``cycle_ns``: nanoseconds per compute figure. ``model_parallel`` goes in place of the
        file's. Collectives start as soon as they can; see :meth:`Workload.in_order` and
        :meth:`Workload.serialized`.

        Raises:
            WorkloadError: ``cycle_ns`` that is negative or not finite, or a workload in which
                nothing is left to do.
        """
        if not (math.isfinite(cycle_ns) and cycle_ns >= 0):
            raise WorkloadError(f"{name}: cycle_ns = {cycle_ns} must be a number from 0 up")
        inner = Inner.DATA if self.strategy is Strategy.HYBRID_MODEL_DATA else Inner.MODEL
        return Workload(
            name=name,
            operations=tuple(_Loop(self, cycle_ns).operations()),
            iterations=iterations,
            model_parallel=model_parallel or self._model_parallel(),
            inner=inner,
        )

    def _model_parallel(self) -> int | None:
        if self.strategy in _TRANSFORMERS:
            return self.model_parallel
        strategies = {self.strategy, *(layer.strategy for layer in self.layers)}
        split = {Strategy.HYBRID_DATA_MODEL, Strategy.HYBRID_MODEL_DATA}
        return None if strategies & split else 1


class _Loop:
    """The training loop of a strategy, written out as operations.

    The computation of a rank is one stream, as in ASTRA-sim: ``_last`` is what it waits for next.
    """

    def __init__(self, source: AstraFile, cycle_ns: float) -> None:
        self._source = source
        self._cycle_ns = cycle_ns
        self._operations: list[Operation] = []
        self._last: tuple[int, ...] = ()
        # By layer: what the next iteration's forward pass of the layer waits for.
        self._updated: dict[int, int] = {}
        self._forward_computes: dict[int, int] = {}

    def operations(self) -> list[Operation]:
        strategy = self._source.strategy
        if strategy is Strategy.MICRO:
            for layer in self._source.layers:
                done = self._communicate(layer, "gradient", layer.weight_gradient, Group.ALL)
                self._last = self._last if done is None else (done,)
            return self._operations
        if strategy in _DLRMS:
            self._dlrm()
        else:
            self._layered()
        self._close()
        return self._operations

    def _add(self, operation: Operation) -> int:
        self._operations.append(operation)
        return len(self._operations) - 1

    def _compute(self, layer: Layer, what: str, phase: Phase) -> int:
        index = self._add(
            Compute(
                ns=round(phase.cycles * self._cycle_ns),
                label=f"{layer.name} {what}",
                after=self._last,
            )
        )
        self._last = (index,)
        return index

    def _communicate(self, layer: Layer, what: str, phase: Phase, group: Group) -> int | None:
        """Start a collective after the last computation; return the operation that ends it."""
        if phase.kind is None:
            return None
        index = self._add(
            Collective(
                kind=phase.kind,
                bytes=phase.bytes,
                group=group,
                # The size of an ALLGATHER is what one rank brings in (system/collective/Ring.cc).
                share=phase.kind is Kind.ALL_GATHER,
                label=f"{layer.name} {what} {phase.kind.value}",
                after=self._last,
            )
        )
        if layer.update_cycles == 0:
            return index
        return self._add(
            Compute(
                ns=round(layer.update_cycles * self._cycle_ns),
                label=f"{layer.name} {what} update",
                after=(index,),
            )
        )

    def _wait(self, done: int | None) -> None:
        if done is not None:
            self._last = tuple(sorted({*self._last, done}))

    def _groups(self, layer: Layer) -> tuple[Group, Group]:
        """Return the groups of a layer's model-parallel and of its gradient collectives."""
        strategy = layer.strategy or self._source.strategy
        if strategy in (Strategy.DATA, Strategy.MODEL, Strategy.DISTRIBUTED_INFERENCE):
            return Group.ALL, Group.ALL
        # A customized file may mix both hybrids. Its neighbours are called model groups, so the
        # layers that are data-parallel among neighbours use the two groups the other way round.
        if layer.strategy is Strategy.HYBRID_MODEL_DATA:
            return Group.DATA, Group.MODEL
        return Group.MODEL, Group.DATA

    def _layered(self) -> None:
        source = self._source
        for number in range(len(source.layers)):
            self._forward(number, first_time=True)
        if source.strategy is Strategy.DISTRIBUTED_INFERENCE:
            return
        for number in reversed(range(len(source.layers))):
            if number in source.recompute_from:
                kept = max(mark for mark in source.checkpoints if mark <= number)
                for again in range(kept, number):
                    self._forward(again, first_time=False)
            if source.strategy is Strategy.DATA:
                self._weight_gradient(number)
                if number > 0:
                    layer = source.layers[number]
                    self._compute(layer, "input gradient", layer.input_gradient)
            else:
                self._backward(number)

    def _forward(self, number: int, *, first_time: bool) -> None:
        layer = self._source.layers[number]
        if first_time:
            index = self._compute(layer, "forward", layer.forward)
            self._forward_computes[number] = index
        else:
            self._compute(layer, "forward again", layer.forward)
        if self._source.strategy is not Strategy.DATA:
            self._wait(self._communicate(layer, "forward", layer.forward, self._groups(layer)[0]))

    def _weight_gradient(self, number: int) -> None:
        layer = self._source.layers[number]
        self._compute(layer, "weight gradient", layer.weight_gradient)
        done = self._communicate(
            layer, "weight gradient", layer.weight_gradient, self._groups(layer)[1]
        )
        if done is not None:
            self._updated[number] = done

    def _backward(self, number: int) -> None:
        layer = self._source.layers[number]
        blocking = self._source.strategy in _TRANSFORMERS
        self._compute(layer, "input gradient", layer.input_gradient)
        done = None
        # Nothing stands before the first layer, so its input gradient goes nowhere; the loops of
        # the Transformer send it all the same.
        if blocking or number > 0:
            done = self._communicate(
                layer, "input gradient", layer.input_gradient, self._groups(layer)[0]
            )
        if blocking:
            self._wait(done)
        self._weight_gradient(number)
        if not blocking:
            self._wait(done)

    def _dlrm(self) -> None:
        source = self._source
        layers, embedding = source.layers, source.layers[0]
        bottom = source.last_bottom_layer or 0
        looked_up = None
        for number, layer in enumerate(layers):
            self._forward_computes[number] = self._compute(layer, "forward", layer.forward)
            if number == 0:
                looked_up = self._communicate(layer, "forward", layer.forward, Group.ALL)
            if number == bottom:
                self._wait(looked_up)
        sent_back = None
        for number in reversed(range(len(layers))):
            layer = layers[number]
            self._compute(layer, "weight gradient", layer.weight_gradient)
            done = self._communicate(layer, "weight gradient", layer.weight_gradient, Group.ALL)
            if done is not None:
                self._updated[number] = done
            if number == 0 and source.strategy is Strategy.HYBRID_DLRM:
                self._wait(sent_back)
            if number > 0:
                self._compute(layer, "input gradient", layer.input_gradient)
            if number == bottom + 1:
                sent_back = self._communicate(
                    embedding, "input gradient", embedding.input_gradient, Group.ALL
                )

    def _close(self) -> None:
        """Tie the next iteration to this one: same stream, and weights before their use."""
        first = min(self._forward_computes)
        for number, index in self._forward_computes.items():
            before = {self._updated[number]} if number in self._updated else set()
            if number == first:
                before |= set(self._last)
            operation = self._operations[index]
            self._operations[index] = replace(operation, after_previous=tuple(sorted(before)))


def load_astra(source: str, base: Path | None = None) -> AstraFile:
    """Return the workload of a published short name (``resnet50``) or of a file.

    A relative path counts from ``base`` (default: the current directory).

    Raises:
        WorkloadError: no such name or file, or what :func:`parse_astra` raises.
    """
    if source in PUBLISHED:
        resource = files("ringstep_ns3.workloads") / "data" / PUBLISHED[source]
        return parse_astra(resource.read_text(encoding="utf-8"), PUBLISHED[source])
    path = (base or Path()) / source
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(
            f"{path}: {error.strerror or error}; give a file that can be read or one of "
            f"{', '.join(PUBLISHED)}"
        ) from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: not a text file; ASTRA-sim 1.0 workloads are text") from None
    return parse_astra(text, str(path))


def parse_astra(text: str, name: str) -> AstraFile:
    """Return the workload that ``text`` describes; ``name`` is what messages call it.

    Raises:
        WorkloadError: one line ``name:line:column: what; remedy`` per mistake.
    """
    return _Parser(text, name).parse()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int
    column: int


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._problems: list[str] = []
        self._lines = [
            [
                _Token(match.group(), number, match.start() + 1)
                for match in re.finditer(r"\S+", line)
            ]
            for number, line in enumerate(text.splitlines(), start=1)
        ]
        self._rows = [tokens for tokens in self._lines if tokens]

    def parse(self) -> AstraFile:
        if len(self._rows) < 2:
            at = len(self._lines) + 1
            self._say(at, 1, "the file ends early; line 1 names the strategy, line 2 the layers")
            raise WorkloadError(self._problems)
        header, count_row, *layer_rows = self._rows
        strategy = self._strategy(header[0], tuple(Strategy))
        if strategy is None:
            raise WorkloadError(self._problems)
        count = self._count(count_row)
        layers = [self._layer(row, strategy) for row in layer_rows]
        if count is not None and len(layer_rows) != count:
            self._miscount(count_row, layer_rows, count)
        result = self._header(header, strategy, tuple(layer for layer in layers if layer))
        if not self._problems:
            for row, layer in zip(layer_rows, result.layers, strict=True):
                self._check_use(row, layer, result.strategy, first=row is layer_rows[0])
        if self._problems:
            raise WorkloadError(self._problems)
        return result

    def _say(self, line: int, column: int, what: str) -> None:
        self._problems.append(f"{self._name}:{line}:{column}: {what}")

    def _say_at(self, token: _Token, what: str) -> None:
        self._say(token.line, token.column, what)

    def _number(self, token: _Token, what: str, least: int = 0) -> int | None:
        if not token.text.isascii() or not token.text.isdigit() or len(token.text) > 19:
            self._say_at(token, f"{what}: {token.text!r} is not a whole number from {least} up")
            return None
        value = int(token.text)
        if not least <= value <= MAX_FIGURE:
            self._say_at(token, f"{what}: {value} must be between {least} and {MAX_FIGURE}")
            return None
        return value

    def _strategy(self, token: _Token, allowed: tuple[Strategy, ...]) -> Strategy | None:
        names = [strategy.value for strategy in allowed]
        if token.text in names:
            return Strategy(token.text)
        close = difflib.get_close_matches(token.text.upper(), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(names)}"
        self._say_at(token, f"strategy {token.text!r} is not known; {hint}")
        return None

    def _count(self, row: list[_Token]) -> int | None:
        count = self._number(row[0], "number of layers", least=1)
        if len(row) > 1:
            self._say_at(row[1], f"{row[1].text!r} after the number of layers; leave it out")
        return count

    def _miscount(
        self, count_row: list[_Token], layer_rows: list[list[_Token]], count: int
    ) -> None:
        if len(layer_rows) > count:
            self._say_at(
                layer_rows[count][0],
                f"layer {len(layer_rows[: count + 1])} of {count} announced in line "
                f"{count_row[0].line}; write {len(layer_rows)} there or take the layer out",
            )
        else:
            self._say_at(
                count_row[0],
                f"{count} layers announced, {len(layer_rows)} found; write {len(layer_rows)} or "
                "add the missing ones",
            )

    def _header(
        self, header: list[_Token], strategy: Strategy, layers: tuple[Layer, ...]
    ) -> AstraFile:
        rest = iter(header[1:])
        result = AstraFile(strategy, layers)
        if strategy in _TRANSFORMERS:
            size = self._keyword(header, rest, "model_parallel_NPU_group:", least=1)
            result = replace(result, model_parallel=size)
        if strategy is Strategy.HYBRID_TRANSFORMER_FWD_IN_BCKWD:
            checkpoints = self._marks(header, rest, "checkpoints:", len(layers))
            again = self._marks(header, rest, "checkpoint_initiates:", len(layers))
            if not self._problems:
                for mark in again:
                    if not any(kept <= mark for kept in checkpoints):
                        self._say_at(
                            header[0],
                            f"layer {mark} initiates a forward pass from a checkpoint, but no "
                            f"checkpoint stands at or before it; add one to checkpoints:",
                        )
            result = replace(result, checkpoints=checkpoints, recompute_from=again)
        if strategy in _DLRMS:
            token = next(rest, None)
            if token is None:
                self._say_at(
                    header[0], f"{strategy} needs the last bottom layer after it, such as 4"
                )
            else:
                last = self._number(token, "last bottom layer")
                if last is not None and last + 1 >= len(layers) and layers:
                    self._say_at(
                        token,
                        f"last bottom layer {last} leaves no top layer among the {len(layers)} "
                        f"layers; it must be below {len(layers) - 1}",
                    )
                result = replace(result, last_bottom_layer=last)
        for token in rest:
            self._say_at(token, f"{token.text!r} is too much in line {token.line}; leave it out")
            break
        return result

    def _keyword(
        self, header: list[_Token], rest: Iterator[_Token], word: str, least: int = 0
    ) -> int | None:
        token = next(rest, None)
        value = next(rest, None) if token is not None else None
        if token is None or token.text != word or value is None:
            at = token or header[-1]
            self._say_at(at, f"{header[0].text} needs {word!r} and a number here")
            return None
        return self._number(value, word.rstrip(":"), least)

    def _marks(
        self, header: list[_Token], rest: Iterator[_Token], word: str, layers: int
    ) -> tuple[int, ...]:
        count = self._keyword(header, rest, word) or 0
        marks: list[int] = []
        for _ in range(min(count, layers)):
            token = next(rest, None)
            if token is None:
                self._say_at(header[-1], f"{word} announces {count} layers, {len(marks)} follow")
                break
            mark = self._number(token, word.rstrip(":"))
            if mark is not None and mark >= layers:
                self._say_at(
                    token, f"layer {mark} is not there; layers count from 0 to {layers - 1}"
                )
            elif mark is not None:
                marks.append(mark)
        return tuple(marks)

    def _layer(self, row: list[_Token], strategy: Strategy) -> Layer | None:
        columns = 13 if strategy is Strategy.HYBRID_CUSTOMIZED else 12
        if len(row) != columns:
            at = row[columns] if len(row) > columns else row[-1]
            self._say_at(
                at,
                f"layer {row[0].text!r} has {len(row)} columns, {strategy} needs {columns}: name, "
                "-1, 3 of forward, 3 of input gradient, 3 of weight gradient, update"
                + (", strategy" if columns == 13 else ""),
            )
            return None
        if not re.fullmatch(r"-?\d+", row[1].text):
            self._say_at(row[1], f"reserved column: {row[1].text!r} is not a number; write -1")
        phases = [
            self._phase(row[at : at + 3], what)
            for at, what in ((2, "forward"), (5, "input gradient"), (8, "weight gradient"))
        ]
        update = self._number(row[11], "update time")
        own = self._strategy(row[12], _LAYER_STRATEGIES) if columns == 13 else None
        forward, input_gradient, weight_gradient = phases
        if forward is None or input_gradient is None or weight_gradient is None or update is None:
            return None
        return Layer(row[0].text, forward, input_gradient, weight_gradient, update, own)

    def _phase(self, tokens: list[_Token], what: str) -> Phase | None:
        cycles = self._number(tokens[0], f"{what} compute time")
        size = self._number(tokens[2], f"{what} bytes")
        word = tokens[1].text
        if word not in _KINDS:
            close = difflib.get_close_matches(word.upper(), _KINDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(_KINDS)}"
            self._say_at(tokens[1], f"{what} collective: {word!r} is not known; {hint}")
            return None
        if cycles is None or size is None:
            return None
        kind = _KINDS[word]
        if kind is None and size > 0:
            self._say_at(
                tokens[2], f"{what} bytes: {size} bytes with NONE; write 0 or a collective"
            )
            return None
        if kind is not None and size == 0:
            self._say_at(tokens[2], f"{what} bytes: {word} over 0 bytes; write a size, or NONE 0")
            return None
        return Phase(cycles, kind, size)

    def _check_use(
        self, row: list[_Token], layer: Layer, strategy: Strategy, *, first: bool
    ) -> None:
        """Refuse collectives that the strategy would never run."""
        effective = layer.strategy or strategy
        unused: list[tuple[int, str, Phase]] = []
        forward = (3, "forward", layer.forward)
        back = (6, "input-gradient", layer.input_gradient)
        gradient = (9, "weight-gradient", layer.weight_gradient)
        if effective in (Strategy.DATA, Strategy.MICRO) or (effective in _DLRMS and not first):
            unused = [forward, back]
        elif effective is Strategy.MODEL:
            unused = [gradient]
        elif effective is Strategy.DISTRIBUTED_INFERENCE:
            unused = [back, gradient]
        for column, what, phase in unused:
            if phase.kind is not None:
                self._say_at(
                    row[column],
                    f"{effective} never runs the {what} collective of layer {layer.name!r}; "
                    "write NONE 0, or choose another strategy",
                )
