"""How groups start from process groups of torch."""

import os
import socket
import subprocess
import sys
import threading

import mkernel
import pytest
import torch
import torch.distributed as dist
from mkernel import _startup


def in_threads(function, world):
    results = [None] * world

    def call(rank):
        try:
            results[rank] = function(rank)
        except mkernel.Error as failure:
            results[rank] = failure

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_agree_on_the_address_and_the_secret():
    store = dist.HashStore()
    first = in_threads(lambda rank: _startup._meet(store, "first", rank, 4, 10), 4)
    second = in_threads(lambda rank: _startup._meet(store, "second", rank, 4, 10), 4)
    for met in (first, second):
        host, port, secret = met[0]
        assert met == [met[0]] * 4 and host == "127.0.0.1" and port > 0 and len(secret) == 32
    assert first[0][2] != second[0][2]


def test_hosts_meet_at_that_of_rank_0(monkeypatch):
    store = dist.HashStore()
    hosts = threading.local()
    monkeypatch.setattr(_startup, "_host_id", lambda: hosts.name)

    def meet(rank):
        hosts.name = f"host {rank // 2}"
        return _startup._meet(store, "key", rank, 4, 10)

    assert {host for host, _, _ in in_threads(meet, 4)} == {socket.gethostname()}


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    failures = in_threads(lambda rank: _startup._meet(store, "key", rank, 3, 0.5), 2)
    for failure in failures:
        assert failure.kind == "rendezvous" and failure.rank == 2 and failure.awaited == "mkernel.init"


PROGRAM = """
import sys
import torch, torch.distributed as dist
import mkernel
rank, world, port = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
try:
    for name in (None, "other", None):
        with mkernel.init(name=name) as group:
            assert group.world == 1 and group.name == (name or "default"), group
            names = [group.name] if name else ["default", dist.group.WORLD.group_name]
            x = torch.arange(8.0)
            for name in names:
                assert torch.equal(torch.ops.mkernel.all_reduce(x, name), x)
    part = dist.new_group([0])
    with mkernel.init(part) as group:
        assert torch.equal(torch.ops.mkernel.all_reduce(x, part.group_name), x)
        assert part.group_name == group.name != dist.group.WORLD.group_name
    print("done")
except mkernel.Error as failure:
    print(failure.kind, failure)
"""


def start(world):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(world), str(port)],
            env=os.environ | {"MKERNEL_DEVICE": "sim"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    return [process.communicate(timeout=120)[0] for process in processes]


def test_a_process_group_gives_a_group_several_times():
    assert start(1) == ["done\n"]


def test_processes_cannot_share_simulated_gpus():
    for output in start(2):
        assert output.startswith("setup "), output


def test_the_environment_of_a_launcher_gives_a_group():
    code = "import mkernel; group = mkernel.init(); print(group); group.close()"
    environment = {"MKERNEL_DEVICE": "sim", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "Group('default', rank 0 of 1)\n", ran.stderr


def test_a_process_without_a_launcher_says_what_is_missing():
    code = "import mkernel\ntry: mkernel.init()\nexcept mkernel.Error as failure: print(failure.kind, failure)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("setup ") and "RANK" in ran.stdout, ran.stdout + ran.stderr


def test_groups_of_groups():
    def rank(group):
        part = group.split(group.rank % 2, key=-group.rank)
        assert (part.name, part.world, part.rank) == (f"default/{group.rank % 2}", 2, 1 - group.rank // 2)
        x = torch.full((8,), float(group.rank))
        assert (mkernel.all_reduce(x, group=part.name) == 2 + 2 * (group.rank % 2)).all()
        alone = part.split(0 if part.rank else None, name="alone")
        assert (alone is None) == (part.rank == 0)
        if alone is not None:
            assert torch.equal(mkernel.all_reduce(x, group="alone"), x) and alone.world == 1
        assert (mkernel.all_reduce(x) == 6).all()
        with pytest.raises(mkernel.Error, match="3 ranks"):
            group.split(min(group.rank, 1))
        return part

    for part in mkernel.run(rank, 4):
        with pytest.raises(mkernel.Error, match="there is no group 'default/"):
            mkernel.all_reduce(torch.ones(8), group=part.name)
