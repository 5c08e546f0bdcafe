"""Ranks that fail, and calls with mistakes: they raise, and nothing hangs."""

import mkernel
import pytest
import torch


def failures_of(function, ranks=2):
    """Return the exception of each rank."""

    def rank(group):
        group.set_timeout(20, host=20)
        try:
            function(group)
        except Exception as failure:
            return failure
        return None

    return mkernel.run(rank, ranks)


def test_a_rank_that_raises_is_the_cause():
    def rank(group):
        if group.rank == 1:
            raise KeyError("the cause")
        mkernel.all_reduce(torch.ones(8))

    with pytest.raises(KeyError, match="the cause"):
        mkernel.run(rank, 2)


def test_a_rank_that_leaves_is_named():
    x = torch.ones(8, dtype=torch.bfloat16)

    def rank(group):
        mkernel.all_reduce(x)
        if group.rank == 1:
            group.close()
            return
        for _ in range(3):
            mkernel.all_reduce(x)
        pytest.fail("rank 1 made no call")

    left, nothing = failures_of(rank)
    assert nothing is None
    assert isinstance(left, mkernel.Error) and left.kind == "rank lost" and left.rank == 1
    assert "call 2" in left.awaited, left.awaited


def test_the_ranks_that_are_left_go_on():
    def rank(group):
        x = torch.full((8,), float(group.rank))
        assert (mkernel.all_reduce(x) == 6).all()
        if group.rank in (0, 3):
            return None
        with pytest.raises(mkernel.Error) as failure:
            mkernel.all_reduce(x)
        assert failure.value.kind == "rank lost"
        with pytest.raises(mkernel.Error) as failure:
            group.rebuild(3)
        assert failure.value.kind == "rendezvous"
        left = group.rebuild(2)
        assert (left.name, left.rank, left.world) == ("default", group.rank - 1, 2)
        assert (mkernel.all_reduce(x) == 3).all()
        return left

    for left in mkernel.run(rank, 4):
        if left is not None:
            with pytest.raises(mkernel.Error, match="there is no group 'default'"):
                mkernel.all_reduce(torch.ones(8), group=left.name)


def test_a_rank_that_does_not_come_is_named():
    def rank(group):
        group.set_timeout(20, host=1)
        if group.rank == 0:
            group.barrier()
        else:
            threading_event.wait(30)

    import threading

    threading_event = threading.Event()

    def waits(group):
        try:
            rank(group)
        finally:
            threading_event.set()

    first, _ = failures_of(waits)
    assert isinstance(first, mkernel.Error) and first.kind == "rendezvous"
    assert first.rank == 1 and first.awaited == "barrier"


def test_ranks_with_different_sizes():
    def rank(group):
        mkernel.gemm_rs(torch.ones(16, 64).bfloat16(), torch.ones(64, 8 * (group.rank + 1)).bfloat16())

    for failure in failures_of(rank):
        assert isinstance(failure, mkernel.Error) and failure.kind == "mismatch", failure
        assert failure.rank == 1


def test_all_mistakes_of_tensors_are_named_at_once():
    def rank(group):
        a, b = torch.ones(4, 64).bfloat16(), torch.ones(64, 8).bfloat16()
        cases = {
            "bias: its shape is (7,), but this call takes (8,)\nresidual: its shape is (3, 8)": lambda: mkernel.gemm(
                a, b, torch.ones(7).bfloat16(), torch.ones(3, 8).bfloat16()
            ),
            "a has the shape (4, 64), and b (8, 64)": lambda: mkernel.gemm(a, b.t()),
            "the kernel expects bf16": lambda: mkernel.gemm(a, b.half()),
            "c: the strides are (1, 4)": lambda: mkernel.gemm(a, b, out=torch.empty(8, 4).bfloat16().t()),
            "a multiple of 8": lambda: mkernel.all_reduce(torch.ones(7)),
            "int64": lambda: mkernel.all_reduce(torch.ones(8, dtype=torch.int64)),
        }
        for text, call in cases.items():
            with pytest.raises(mkernel.Error) as caught:
                call()
            assert text in str(caught.value), caught.value
        operator = group.prepare("gemm", m=4, n=8, k=64)
        with pytest.raises(mkernel.Error) as caught:
            operator(a=a.t(), b=b, c=torch.ones(4, 8, dtype=torch.bfloat16, device="meta"))
        assert caught.value.kind == "operands"
        assert "operand a: its shape is (64, 4)" in str(caught.value)
        assert "operand c: it is on meta" in str(caught.value)
        with pytest.raises(mkernel.Error) as caught:
            operator(a=a, b=torch.ones(63, 8))
        for part in ("operand b: its elements are fp32", "504 elements", "operand c: it was not passed"):
            assert part in str(caught.value), caught.value

    mkernel.run(rank, 1)


def test_an_expert_that_does_not_exist_is_an_error_of_its_call():
    def rank(group):
        x, weight = torch.ones(2, 64).bfloat16(), torch.ones(1, 64, 64).bfloat16()
        ids = torch.tensor([[0], [5]], dtype=torch.int32)
        with pytest.raises(mkernel.Error) as caught:
            mkernel.dispatch_gemm(x, ids, weight)
        assert caught.value.kind == "values"
        mkernel.dispatch_gemm(x, ids.clamp(max=group.world - 1), weight)

    mkernel.run(rank, 2)


def test_a_thread_that_is_no_rank():
    def rank(group):
        group.barrier()
        if group.rank == 0:
            import threading

            found = []

            def other():
                with pytest.raises(mkernel.Error) as caught:
                    mkernel.all_reduce(torch.ones(8))
                found.append(caught.value)

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            assert found[0].kind == "setup" and "this thread is none of them" in str(found[0])
        group.barrier()

    mkernel.run(rank, 2)
    with pytest.raises(mkernel.Error, match="there is no group 'default'"):
        mkernel.all_reduce(torch.ones(8))
