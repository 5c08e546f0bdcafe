"""How groups are created: from a process group of torch, from the environment of a launcher, or as threads."""

from __future__ import annotations

import datetime
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native
from ._errors import Error, error
from ._groups import DEFAULT, Group, bind

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

T = TypeVar("T")

# The number of groups that this process has made of each process group. Ranks count alike, so each group has keys of its own.
_made: dict[str, int] = {}

_SECRET_BYTES = 32


def init(process_group: ProcessGroup | None = None, *, name: str | None = None, timeout: float = 300.0) -> Group:
    """Create the group of this process. All ranks call this at the same time.

    The ranks are those of ``process_group``, by default the ranks of torch's default process group. mkernel uses the store of
    the process group once, and connections of its own afterwards. Without a process group, the variables of torchrun, srun or
    mpirun say which ranks there are.

    Args:
        process_group: A process group of ``torch.distributed``. Each group of ranks can have a group of mkernel.
        name: The name of the group. The default is the name that torch gives the process group, and ``"default"`` for the
            default process group.
        timeout: The time that ranks wait for each other to call this function, in seconds.

    Raises:
        Error: Of kind ``"setup"`` if the GPU or the environment cannot be used, and of kind ``"rendezvous"`` if a rank does not
            come.
    """
    if process_group is None and not _torch_is_distributed():
        native, names = _native.Communicator.from_env(), (name or DEFAULT,)
    else:
        native, names = _connect(process_group, name, timeout)
    _register_operators()
    return bind(Group(native, names), to_thread=False)


def run(
    function: Callable[[Group], T],
    ranks: int = 2,
    *,
    devices: Sequence[int] | None = None,
    name: str = DEFAULT,
    seed: int = 0,
    sms: int = 8,
    skew: int = 20,
) -> list[T]:
    """Call ``function`` for each rank of a group, in a thread of its own, and return the results by rank.

    Without ``devices``, the GPUs are simulated: operators take tensors of the CPU, and the CPU runs the kernels that GPUs would run. This needs a C++20 compiler. A process has either simulated or real GPUs for all of its life.

    Args:
        function: A function that each rank calls with its group. The group is closed when the function returns or raises.
        ranks: The number of simulated ranks: 1, 2, 4 or 8.
        devices: The GPUs of the ranks, instead of simulated ones.
        name: The name of the group.
        seed: The seed of the order of concurrent events. Runs with equal seeds are equal.
        sms: The number of SMs of a simulated GPU.
        skew: The unfairness of the order of events, from 0 (fair) to 100.

    Raises:
        Exception: The exception of the rank that failed first. The remaining ranks do not wait for a rank that has failed.
    """
    _register_operators()
    if devices is None:
        _make_fake_tensors_safe()
        natives = _native.simulated(ranks, seed, sms, skew)
    elif len(set(devices)) < len(devices):
        # Kernels of two ranks in torch's default stream would wait for each other.
        raise error("setup", f"devices = {list(devices)}, but each rank needs a GPU of its own")
    else:
        natives = _native.local(list(devices))
    results: list[Any] = [None] * len(natives)
    failures: list[BaseException] = []

    def of_rank(native: _native.Communicator) -> None:
        try:
            with bind(Group(native, (name,)), to_thread=True) as group:
                if group.device is not None:
                    _use_device(group.device)
                results[group.rank] = function(group)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=of_rank, args=(native,), daemon=True) for native in natives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise min(failures, key=_order)
    return results


def _order(failure: BaseException) -> int:
    """Return the place of a failure in the order of causes. An error that is not about another rank is a cause."""
    kind = failure.kind if isinstance(failure, Error) else None
    return {"rank lost": 2, "aborted": 2, "timeout": 1, "rendezvous": 1}.get(kind or "", 0)


def _use_device(device: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.cuda.set_device(device)


def _register_operators() -> None:
    """Make the operators known to torch, if the program uses torch."""
    if "torch" in sys.modules:
        from . import ops  # noqa: F401


def _make_fake_tensors_safe() -> None:
    """Use fake tensors in this thread.

    torch for CUDA on a host without GPUs crashes in the second thread that compiles, if the first one has ended.
    """
    if "torch" in sys.modules:
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode():
            pass


def _torch_is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _connect(
    process_group: ProcessGroup | None, name: str | None, timeout: float
) -> tuple[_native.Communicator, tuple[str, ...]]:
    """Connect the ranks of a process group. Rank 0 publishes its address in the store of the process group."""
    import torch
    import torch.distributed as dist

    world = dist.group.WORLD
    group = process_group or world
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise error("setup", "this process is not a rank of the process group. Call mkernel.init on its ranks only")
    names = (name,) if name else (group.group_name,)
    if group is world and not name:
        names = (DEFAULT, group.group_name)
    count = _made[names[-1]] = _made.get(names[-1], 0) + 1
    host, port, secret = _meet(group.get_group_store(), f"mkernel/{names[-1]}/{count}", rank, size, timeout)
    local_rank = torch.cuda.current_device() if torch.cuda.is_available() else None
    native = _native.Communicator.connect(rank, size, host, port, local_rank, secret)
    return native, names


def _meet(store: Store, prefix: str, rank: int, world: int, timeout: float) -> tuple[str, int, bytes]:
    """Return the host and port of rank 0, and the secret of the job."""
    own = _host_id()
    store.set(f"{prefix}/host/{rank}", own)
    if rank == 0:
        # A port that is free now.
        with socket.socket() as listener:
            listener.bind(("", 0))
            port = listener.getsockname()[1]
        store.set(f"{prefix}/rank 0", f"{port} {os.urandom(_SECRET_BYTES).hex()} {socket.gethostname()}")
    keys = [f"{prefix}/host/{other}" for other in range(world)]
    for other, key in enumerate([*keys, f"{prefix}/rank 0"]):
        try:
            store.wait([key], datetime.timedelta(seconds=timeout))
        except RuntimeError as failure:
            missing = other % world
            text = f"rank {missing} has not called mkernel.init within {timeout} s: {failure}"
            raise error("rendezvous", text, rank=missing, awaited="mkernel.init") from failure
    port_text, secret, host = store.get(f"{prefix}/rank 0").decode().split(" ")
    is_one_host = all(store.get(key).decode() == own for key in keys)
    return ("127.0.0.1" if is_one_host else host), int(port_text), bytes.fromhex(secret)


def _host_id() -> str:
    """Return a text that is the same in all processes of a host, and different on every other host."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
