"""Tensors as the engine takes them: memory, type and reduction; for the "ringstep" backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from ringstep.hostlib.engine import Comm, Op, Type
from ringstep.hostlib.torch_work import Step

__all__ = [
    "all_gather_list_step",
    "all_gather_step",
    "all_reduce_step",
    "barrier_step",
    "broadcast_step",
    "listed",
    "only",
    "reduce_scatter_list_step",
    "reduce_scatter_step",
]

_TYPES: Final = {
    torch.int8: Type.INT8, torch.uint8: Type.UINT8, torch.int32: Type.INT32,
    torch.uint32: Type.UINT32, torch.int64: Type.INT64, torch.uint64: Type.UINT64,
    torch.float16: Type.FLOAT16, torch.float32: Type.FLOAT32, torch.float64: Type.FLOAT64,
    torch.bfloat16: Type.BFLOAT16,
}  # fmt: skip
_OPS: Final = {"SUM": Op.SUM, "PRODUCT": Op.PROD, "MAX": Op.MAX, "MIN": Op.MIN, "AVG": Op.AVG}
_OPS_OF_BOOL: Final = {"SUM": Op.MAX, "MAX": Op.MAX, "PRODUCT": Op.MIN, "MIN": Op.MIN}


def listed(tensors: Any) -> list[torch.Tensor]:
    """Return tensors as a list, one as a list of one."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def only(values: Any, what: str) -> Any:
    """Return the one tensor, or list of tensors, that a call is about.

    Raises:
        ValueError: there are none or several.
    """
    if len(values) != 1:
        raise ValueError(f"{what}: {len(values)} tensors; one per call, or a coalesced call")
    return values[0]


def _staged(what: str, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Return memory that the engine can use, and what copies it back where it is not the tensor."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"{what}: a {tensor.layout} tensor on {tensor.device}; "
            f"backend ringstep takes dense tensors on the CPU"
        )
    plain = tensor.detach()
    if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
        return plain, None
    copy = plain.resolve_conj().resolve_neg().contiguous()
    return copy, functools.partial(_copy_back, tensor, copy)


def _copy_back(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(source)


def _checked(what: str, larger: torch.Tensor, smaller: torch.Tensor, ratio: int = 1) -> None:
    if larger.dtype != smaller.dtype:
        raise ValueError(f"{what}: {larger.dtype} and {smaller.dtype}; both must be the same")
    if larger.numel() != ratio * smaller.numel():
        raise ValueError(
            f"{what}: {larger.numel()} and {smaller.numel()} elements; "
            f"the one must have {ratio} times as many as the other"
        )


def _reduction(what: str, tensor: torch.Tensor, opts: Any) -> tuple[Type, Op]:
    wanted = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
    names = _OPS_OF_BOOL if tensor.dtype == torch.bool else _OPS
    for name, op in names.items():
        if wanted == getattr(dist.ReduceOp, name):
            if tensor.dtype == torch.bool:
                return Type.UINT8, op
            if tensor.dtype in _TYPES:
                return _TYPES[tensor.dtype], op
            known = ", ".join(str(t).removeprefix("torch.") for t in _TYPES)
            raise ValueError(f"{what}: {tensor.dtype} cannot be reduced; {known} and bool can")
    raise ValueError(
        f"{what} of {tensor.dtype}: reduction {getattr(wanted, 'op', wanted)} is not among "
        f"{', '.join(names)}"
    )


# --- steps: checked at issue, run on the group's thread; to move nothing is no call on any rank ---


def all_reduce_step(what: str, tensor: torch.Tensor, opts: Any) -> Step:
    """Reduce a tensor in place.

    Raises:
        ValueError: a type or reduction that the engine does not have, or not dense on the CPU.
    """
    kind, op = _reduction(what, tensor, opts)
    buffer, after = _staged(what, tensor)

    def run(comm: Comm) -> None:
        if buffer.nbytes:
            place = buffer.data_ptr()
            comm.all_reduce_raw(place, place, buffer.numel(), kind, op)

    return Step(run, after)


def broadcast_step(what: str, tensor: torch.Tensor, root: int) -> Step:
    """Give everybody the root's tensor.

    Raises:
        ValueError: not dense on the CPU.
    """
    buffer, after = _staged(what, tensor)

    def run(comm: Comm) -> None:
        if buffer.nbytes:
            place = buffer.data_ptr()
            comm.broadcast_raw(place, place, *_as_moved(buffer), root)

    return Step(run, after)


def all_gather_step(what: str, output: torch.Tensor, send: torch.Tensor, size: int) -> Step:
    """Gather a tensor from each of ``size`` ranks into one.

    Raises:
        ValueError: sizes or types that do not fit, or not dense on the CPU.
    """
    _checked(what, output, send, ratio=size)
    source, _ = _staged(what, send)
    target, after = _staged(what, output)
    return Step(_gathering(source, target), after)


def all_gather_list_step(what: str, outputs: Any, send: torch.Tensor, size: int) -> Step:
    """Gather a tensor from each of ``size`` ranks into a list.

    Raises:
        ValueError: as :func:`all_gather_step`, or not one tensor for each rank.
    """
    _one_for_each(what, outputs, size)
    for output in outputs:
        _checked(what, output, send)
        _staged(what, output)
    source, _ = _staged(what, send)
    joined = torch.empty((size, send.numel()), dtype=send.dtype)

    def spread() -> None:
        for output, part in zip(outputs, joined, strict=True):
            _copy_back(output, part.view(output.shape))

    return Step(_gathering(source, joined), spread)


def reduce_scatter_step(
    what: str, output: torch.Tensor, send: torch.Tensor, opts: Any, size: int
) -> Step:
    """Reduce a tensor and keep this rank's of ``size`` parts.

    Raises:
        ValueError: sizes or types that do not fit, a reduction that the engine does not have, or
            not dense on the CPU.
    """
    _checked(what, send, output, ratio=size)
    kind, op = _reduction(what, output, opts)
    source, _ = _staged(what, send)
    target, after = _staged(what, output)

    def run(comm: Comm) -> None:
        if target.nbytes:
            places = source.data_ptr(), target.data_ptr()
            comm.reduce_scatter_raw(*places, target.numel(), kind, op)

    return Step(run, after)


def reduce_scatter_list_step(
    what: str, output: torch.Tensor, sends: Any, opts: Any, size: int
) -> Step:
    """Reduce a list of tensors, one for each of ``size`` ranks, and keep this rank's.

    Raises:
        ValueError: as :func:`reduce_scatter_step`, or not one tensor for each rank.
    """
    _one_for_each(what, sends, size)
    for send in sends:
        _checked(what, send, output)
    joined = torch.cat([_staged(what, send)[0].reshape(-1) for send in sends])
    return reduce_scatter_step(what, output, joined, opts, size)


def barrier_step() -> Step:
    """Wait for every rank: an all-reduce of one byte."""
    token = torch.zeros(1, dtype=torch.uint8)

    def run(comm: Comm) -> None:
        comm.all_reduce_raw(token.data_ptr(), token.data_ptr(), 1, Type.UINT8, Op.MAX)

    return Step(run)


def _gathering(source: torch.Tensor, target: torch.Tensor) -> Callable[[Comm], None]:
    def run(comm: Comm) -> None:
        if source.nbytes:
            comm.all_gather_raw(source.data_ptr(), target.data_ptr(), *_as_moved(source))

    return run


def _one_for_each(what: str, tensors: Any, size: int) -> None:
    if len(tensors) != size:
        raise ValueError(f"{what}: {len(tensors)} tensors for {size} ranks")


def _as_moved(tensor: torch.Tensor) -> tuple[int, Type]:
    """Return count and type for what is moved, not reduced: types unknown to NCCL are bytes."""
    kind = _TYPES.get(tensor.dtype)
    return (tensor.nbytes, Type.UINT8) if kind is None else (tensor.numel(), kind)
