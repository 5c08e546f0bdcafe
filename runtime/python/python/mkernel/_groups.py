"""Groups: ranks that call operators together, by name."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from . import _native
from ._errors import error
from ._operators import Operator, declare

DEFAULT = "default"
"""The name of a group to which no other name is given."""

# Groups by name: all groups of this process, and the groups of this thread if the thread is a rank.
_of_process: dict[str, list[Group]] = {}
_of_thread = threading.local()
_lock = threading.Lock()


class Group:
    """One rank of a group of ranks, and the operators that it has prepared.

    A group is created by :func:`mkernel.init` or :func:`mkernel.run`. All ranks prepare and call the same operators in the same
    order. Leave the group by :meth:`close`, or use it in a ``with`` statement, before the process ends.

    Attributes:
        name: The name by which operators of ``torch.ops.mkernel`` find the group.
        rank: This rank.
        world: The number of ranks.
        hosts: The number of hosts that the ranks are on.
        device: The ordinal of this rank's GPU, or None if the GPU is simulated.
    """

    MAX_OPERATORS = 64
    """The number of operators that calls of ``torch.ops.mkernel`` keep. The least recently used operator is dropped first."""

    MAX_CALLS = 1024
    """The number of calls with different tensors that are repeated without checks."""

    def __init__(self, native: _native.Communicator, names: tuple[str, ...]) -> None:
        self._native = native
        self._names = names
        self._operators: OrderedDict[Any, Operator] = OrderedDict()
        self._calls: dict[Any, Any] = {}
        self._parts: list[Group] = []
        self.name = names[0]
        self.rank: int = native.rank
        self.world: int = native.world
        self.hosts: int = native.hosts
        self.device: int | None = native.device

    def prepare(self, op: str, /, **options: Any) -> Operator:
        """Prepare an operator, on all ranks together.

        Args:
            op: The operator, such as ``"ag_gemm"``.
            options: Its sizes and options, with the names that the book gives them: ``m=4096, n=1024, k=8192,
                b_layout="nk"``. A size of ``"..=4096"`` leaves the number of rows to each call. ``world`` and ``nodes`` are
                the ranks and hosts of the group unless they are given.

        Raises:
            Error: With all mistakes of the options, of kind ``"configuration"``, or because a rank failed or prepares another
                operator.
        """
        return Operator(self, self._native.prepare(declare(op, options)))

    def cached(self, key: Any, declaration: Callable[[], str]) -> Operator:
        """Return the operator that was prepared for ``key``, or else prepare the one that ``declaration`` returns."""
        found = self._operators.get(key)
        if found is None:
            found = Operator(self, self._native.prepare(declaration()))
            if len(self._operators) >= self.MAX_OPERATORS:
                self._operators.popitem(last=False)
                self._calls.clear()
            self._operators[key] = found
        else:
            self._operators.move_to_end(key)
        return found

    def remember(self, made: Any, key: Any, call: Any) -> None:
        """Keep the sizes of a call of the operator for ``key``, for later calls with equal sizes."""
        if len(self._calls) >= self.MAX_CALLS:
            self._calls.clear()
        self._calls[made] = key, call

    def recall(self, made: Any) -> Any:
        """Return the sizes that were kept of a call, or None."""
        known = self._calls.get(made)
        if known is None:
            return None
        # All ranks must drop the same operators, although they may keep different calls.
        self._operators.move_to_end(known[0])
        return known[1]

    def rows(self, total: int) -> int:
        """Return the number of this rank's rows of ``total`` rows: ⌈total / world⌉. The last ranks have fewer rows, or none."""
        shard = -(-total // self.world)
        return max(0, min(shard, total - self.rank * shard))

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Group | None:
        """Create groups of the ranks with equal colours. All ranks of this group call this.

        Groups have the GPU and the streams of their ranks in common, so the result of an operator of one group can be an operand of
        another group. All ranks call the operators of their groups in orders that agree.

        Args:
            color: The ranks with the same colour are a group. A rank whose colour is None is in no group.
            key: Ranks are ordered by their keys, and ranks with equal keys by their ranks in this group.
            name: The name by which operators find the group. The default is the name of this group, a slash and the colour.

        Returns:
            The group, or None. It is closed with this group.

        Raises:
            Error: On all ranks, if a group on one host has another number of ranks than 1, 2, 4 or 8.
        """
        native = self._native.split(color, key)
        if native is None:
            return None
        part = bind(Group(native, (name or f"{self.name}/{color}",)), to_thread=is_of_thread(self))
        self._parts.append(part)
        return part

    def rebuild(self, at_least: int) -> Group:
        """Connect the ranks that are left after a failure, in the same processes. All ranks that are left call this.

        This group is closed, and the new group takes its names, so operators of ``torch.ops.mkernel`` find the new one. Tensors stay,
        except symmetric ones.

        Args:
            at_least: The least number of ranks that must be left. More than half of the ranks exclude that two parts of a job that
                cannot reach each other go on as two groups.

        Returns:
            The group of the ranks that are left, in their order. Call :meth:`split` if their number is not 1, 2, 4 or 8.

        Raises:
            Error: Of kind ``"rendezvous"`` if fewer ranks are left. This group can be rebuilt again then.
        """
        native = self._native.rebuild(at_least)
        to_thread = is_of_thread(self)
        self.close()
        left = bind(Group(native, self._names), to_thread=to_thread)
        # Closing this group again closes the new one.
        self._parts.append(left)
        return left

    def barrier(self) -> None:
        """Return when every rank has called this. Work of GPUs is not waited for."""
        self._native.barrier()

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Send at most 64 KiB to all ranks, and return the bytes of each."""
        return self._native.all_gather(data)

    def synchronize(self, stream: Any = None) -> None:
        """Wait for the work of a stream, by default the current one of torch, and raise the error of a call.

        Raises:
            Error: Of kind ``"timeout"`` or ``"rank lost"`` if a rank is missing. The group cannot be used after that:
                :meth:`rebuild` it, or close it and create a new one on every rank.
        """
        self._native.synchronize(self.stream() if stream is None else stream.cuda_stream)

    def check(self) -> None:
        """Raise the error of a call that has ended, without waiting."""
        self._native.check()

    def stream(self) -> int:
        """Return the handle of torch's current stream of this rank's GPU, or 0 on a simulated GPU."""
        return 0 if self.device is None else _raw_stream(self.device)

    @property
    def timeout(self) -> float:
        """The timeout of every wait in kernels, in seconds."""
        return self._native.timeout

    def set_timeout(self, seconds: float, *, host: float | None = None) -> None:
        """Set the timeout of every wait, and another one for steps in which ranks wait for each other on the host."""
        self._native.set_timeout(seconds, host)

    def abort(self) -> None:
        """End all waits of this rank. This may be called from any thread. The group cannot be used after that."""
        self._native.abort()

    def close(self) -> None:
        """Leave the group and its parts. Their operators cannot be called after that. Closing a group twice has no effect."""
        while self._parts:
            self._parts.pop().close()
        unbind(self)
        self._operators.clear()
        self._calls.clear()
        self._native.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.world})"


def _raw_stream(device: int) -> int:
    """Return the handle of torch's current stream of a GPU."""
    import torch

    # An object for the stream takes longer to create than a call of an operator.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device)


def bind(group: Group, *, to_thread: bool) -> Group:
    """Make a group known by its names, to the calling thread alone if that is a rank of its own."""
    with _lock:
        for name in group._names:
            if to_thread:
                _groups_of_thread()[name] = group
            _of_process.setdefault(name, []).append(group)
    return group


def is_of_thread(group: Group) -> bool:
    """Return whether the calling thread is a rank of its own, with this group."""
    return group in _groups_of_thread().values()


def unbind(group: Group) -> None:
    """Forget a group."""
    with _lock:
        for name in group._names:
            if _groups_of_thread().get(name) is group:
                del _groups_of_thread()[name]
            left = [other for other in _of_process.get(name, ()) if other is not group]
            if left:
                _of_process[name] = left
            else:
                _of_process.pop(name, None)


def find(name: str, device: int | None = None) -> Group:
    """Return the group with this name: the calling thread's own group, or else the group on the GPU ``device``.

    Raises:
        Error: Of kind ``"setup"`` if there is no such group.
    """
    own = _groups_of_thread().get(name)
    if own is not None:
        return own
    groups = _of_process.get(name, ())
    if len(groups) == 1:
        return groups[0]
    # A thread of torch's backward pass serves one GPU.
    on_device = [group for group in groups if device is not None and group.device == device]
    if len(on_device) == 1:
        return on_device[0]
    if groups:
        reason = f"{len(groups)} ranks of this process are in the group {name!r}, and this thread is none of them"
    else:
        known = ", ".join(map(repr, _of_process)) or "none"
        reason = f"there is no group {name!r}; the groups of this process are: {known}"
    raise error("setup", f"{reason}. Call mkernel.init or mkernel.run first, and pass the name of its group")


def _groups_of_thread() -> dict[str, Group]:
    try:
        return _of_thread.groups
    except AttributeError:
        _of_thread.groups = {}
        return _of_thread.groups
