"""Many calls of all sizes on the same groups, one after the other: what one leaves behind must not reach another."""

import random

import torch
import torch.distributed as dist

from torchtpu_dist.collectives import recorder
from torchtpu_dist.testing import run_ranks

RANKS = 3
CALLS = 250
DTYPES = (torch.int32, torch.int64, torch.float32, torch.int8, torch.float64)


def values(call: int, rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What ``rank`` puts into call number ``call``: small whole numbers, so that any order of additions is exact."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    return torch.randint(-9, 10, (count,), generator=generator).to(dtype)


def interesting_sizes(n: int, itemsize: int, rng: random.Random) -> int:
    """Around the places where the emulator changes its way: a part of a window, a window, one phase or two."""
    part = 2 * 2**20 // n // 64 * 64 // itemsize
    phase = 32 * 1024 // n
    edges = [0, 1, n - 1, n, n + 1, phase, phase + 1, part - 1, part, part + 1, n * part - 1, n * part, n * part + 1]
    return rng.choice([*edges, rng.randrange(1, 2 * n * part)])


def random_calls() -> int:
    rank = dist.get_rank()
    groups = [(dist.group.WORLD, list(range(RANKS)))]
    groups += [(dist.new_group(members), members) for members in ([0, 1], [0, 2], [1, 2])]
    done = 0
    for call in range(CALLS):
        rng = random.Random(call)
        group, members = rng.choice(groups)
        n, dtype = len(members), rng.choice(DTYPES)
        op = rng.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"))
        count = interesting_sizes(n, dtype.itemsize, rng)
        if rank not in members:
            continue
        me, each = members.index(rank), count // n
        if op == "all_reduce":
            got = values(call, rank, count, dtype)
            dist.all_reduce(got, group=group)
            expected = sum(values(call, member, count, dtype) for member in members)
        elif op == "broadcast":
            root = members[call % n]
            got = values(call, rank, count, dtype)
            dist.broadcast(got, root, group=group)
            expected = values(call, root, count, dtype)
        elif op == "all_gather":
            parts = [torch.empty(each, dtype=dtype) for _ in members]
            dist.all_gather(parts, values(call, rank, each, dtype), group=group)
            got, expected = torch.cat(parts), torch.cat([values(call, member, each, dtype) for member in members])
        else:
            mine = slice(me * each, (me + 1) * each)
            inputs = [values(call, member, n * each, dtype) for member in members]
            if op == "reduce_scatter":
                got = torch.empty(each, dtype=dtype)
                dist.reduce_scatter(got, list(inputs[me].split(each or 1))[:n] if each else [got] * n, group=group)
                expected = sum(whole[mine] for whole in inputs)
            else:
                got = torch.empty(n * each, dtype=dtype)
                dist.all_to_all_single(got, inputs[me], group=group)
                expected = torch.cat([whole[mine] for whole in inputs])
        assert torch.equal(got, expected), f"call {call}: {op} of {count} {dtype} in {members}"
        full = count if op in ("all_reduce", "broadcast") else n * each
        assert recorder.recent()[-1].full_bytes == full * dtype.itemsize, f"call {call}: the price is of another size"
        done += 1
    return done


def test_random_sequences_of_calls_are_right():
    done = run_ranks(random_calls, RANKS, timeout_s=120)
    assert sum(done) > CALLS
