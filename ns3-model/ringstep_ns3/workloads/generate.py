"""Training loops of generated models: data, model and hybrid parallel.

One iteration is a forward and a backward pass over a batch. Gradients are all-reduced over the data
groups in buckets as the backward pass fills them, or after it (``overlap=False``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ringstep_ns3.workloads.layers import Exchange, Layer, Model
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a model is trained.

    ``batch``: samples per replica and iteration. ``device_flops``: what a rank really does per
    second, a multiplication and an addition as 2. ``element_bytes``: size of a gradient or
    activation element. ``bucket_bytes``: gradients gathered before an all_reduce starts; 0: each
    layer on its own. ``model_parallel``: ranks that share a replica; ``inner``: which groups are
    neighbours. ``overlap``: gradients travel during the backward pass. ``wait``: the next forward
    pass of a layer waits for the gradients of ``"layer"`` alone or of the whole ``"iteration"``.

    Raises:
        WorkloadError: a value out of range.
    """

    batch: int = 32
    device_flops: float = 100e12
    element_bytes: int = 4
    bucket_bytes: int = 0
    model_parallel: int = 1
    inner: Inner = Inner.MODEL
    overlap: bool = True
    wait: str = "iteration"

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {value} must be {least} or more"
            for name, value, least in (
                ("batch", self.batch, 1),
                ("element_bytes", self.element_bytes, 1),
                ("bucket_bytes", self.bucket_bytes, 0),
                ("model_parallel", self.model_parallel, 1),
            )
            if value < least
        ]
        if not (self.device_flops > 0 and math.isfinite(self.device_flops)):
            problems.append(f"device_flops = {self.device_flops} must be a number above 0")
        if self.wait not in ("layer", "iteration"):
            problems.append(f'wait = {self.wait!r} must be "layer" or "iteration"')
        if problems:
            raise WorkloadError(problems)


def train(model: Model, training: Training | None = None, iterations: int = 1) -> Workload:
    """Return the training of ``model`` as a workload.

    Raises:
        WorkloadError: a split that does not divide the attention heads.
    """
    training = training or Training()
    if model.heads % training.model_parallel:
        raise WorkloadError(
            f"model_parallel = {training.model_parallel} does not divide the {model.heads} "
            f"attention heads of {model.name}"
        )
    workload = Workload(
        name=model.name,
        operations=tuple(_Loop(model, training).operations()),
        iterations=iterations,
        model_parallel=training.model_parallel,
        inner=training.inner,
    )
    return workload if training.overlap else workload.serialized()


class _Loop:
    def __init__(self, model: Model, training: Training) -> None:
        self._model = model
        self._training = training
        self._split = training.model_parallel
        self._operations: list[Operation] = []
        # What the next computation of a rank waits for.
        self._last: tuple[int, ...] = ()
        self._bucket: list[int] = []
        self._bucket_bytes = 0
        self._full_buckets: list[tuple[list[int], int, tuple[int, ...]]] = []
        self._reduced: dict[int, int] = {}

    def operations(self) -> list[Operation]:
        layers = self._model.layers
        forward = [self._forward(layer) for layer in layers]
        for number in reversed(range(len(layers))):
            self._backward(number, layers[number])
        self._close_bucket()
        for members, size, ready in self._full_buckets:
            self._all_reduce(members, size, ready if self._training.overlap else self._last)
        if self._training.wait == "layer":
            self._tie(forward)
        return self._operations

    def _add(self, operation: Operation) -> int:
        self._operations.append(operation)
        return len(self._operations) - 1

    def _compute(self, label: str, flops: int) -> int:
        work = flops * self._training.batch / self._split
        ns = round(work / self._training.device_flops * 1e9)
        index = self._add(Compute(ns=ns, label=label, after=self._last))
        self._last = (index,)
        return index

    def _exchange(self, label: str, exchange: Exchange | None) -> tuple[int, ...]:
        """Run an exchange of the replica after the last operation; return it, if there is one."""
        if exchange is None or self._split == 1:
            return ()
        size = exchange.elements * self._training.batch * self._training.element_bytes
        index = self._add(
            Collective(
                kind=exchange.kind,
                bytes=size,
                group=Group.MODEL,
                label=f"{label} {exchange.kind.value}",
                after=self._last,
            )
        )
        return (index,)

    def _forward(self, layer: Layer) -> int:
        self._last = self._exchange(f"{layer.name} input", layer.before) or self._last
        index = self._compute(f"{layer.name} forward", layer.flops + layer.plain_flops)
        self._last = self._exchange(f"{layer.name} output", layer.after) or self._last
        return index

    def _backward(self, number: int, layer: Layer) -> None:
        through = layer.flops + 2 * layer.plain_flops if layer.input_gradient else 0
        if self._split == 1 or layer.backward is None:
            self._compute(f"{layer.name} backward", through + layer.flops)
        else:
            # The input gradient goes first, so that its exchange hides behind the weights'.
            self._compute(f"{layer.name} input gradient", through)
            exchanged = self._exchange(f"{layer.name} input gradient", layer.backward)
            self._compute(f"{layer.name} weight gradient", layer.flops)
            self._gradient(number, layer)
            self._last = tuple(sorted({*self._last, *exchanged}))
            return
        self._gradient(number, layer)

    def _gradient(self, number: int, layer: Layer) -> None:
        split = -(-(layer.parameters - layer.replicated) // self._split)
        size = (split + layer.replicated) * self._training.element_bytes
        if size == 0:
            return
        self._bucket.append(number)
        self._bucket_bytes += size
        if self._bucket_bytes >= self._training.bucket_bytes:
            self._close_bucket()

    def _close_bucket(self) -> None:
        if not self._bucket:
            return
        if self._training.overlap:
            self._all_reduce(self._bucket, self._bucket_bytes, self._last)
        else:
            self._full_buckets.append((self._bucket, self._bucket_bytes, self._last))
        self._bucket, self._bucket_bytes = [], 0

    def _all_reduce(self, members: list[int], size: int, ready: tuple[int, ...]) -> None:
        names = [self._model.layers[number].name for number in members]
        label = names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
        index = self._add(
            Collective(
                kind=Kind.ALL_REDUCE,
                bytes=size,
                group=Group.DATA,
                label=f"{label} gradient",
                after=ready,
            )
        )
        self._reduced.update(dict.fromkeys(members, index))

    def _tie(self, forward: list[int]) -> None:
        """Let the next iteration's layers wait for their own gradients alone."""
        for number, index in enumerate(forward):
            before = {self._reduced[number]} if number in self._reduced else set()
            if number == 0:
                before |= set(self._last)
            operation = self._operations[index]
            self._operations[index] = replace(operation, after_previous=tuple(sorted(before)))
