"""The ici backend: every op gives what a plain reference gives, with the same bits on every rank."""

import operator
import time
from functools import reduce as fold
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.emulator import executor, rendezvous
from torchtpu_dist.collectives.emulator.peer_memory import ENVIRONMENT_KEY
from torchtpu_dist.collectives.reduction import reduction_order
from torchtpu_dist.collectives.schedule import Op, split
from torchtpu_dist.mesh.torus import Torus
from torchtpu_dist.testing import run_ranks

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
SHAPES = ((), (1,), (3, 5), (0, 3), (1, 0, 2), (1031,), (70_001,))
# Larger than a window for every number of ranks here, and divisible by none of them.
LARGE = 700_003

# torch renames these: the new name where there is one.
gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def values(shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Small whole numbers: their sums are exact in every dtype, so that any order gives the same."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 7 + 3 * rank) % 4
    return numbers.to(dtype).reshape(shape)


def added(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum, for dtypes that torch cannot add as well."""
    if tensors[0].dtype.itemsize == 1 and tensors[0].is_floating_point():
        return sum(t.float() for t in tensors).to(tensors[0].dtype)
    return fold(operator.add, tensors)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    __tracebackhide__ = True
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    # As bytes: NaN equals itself, -0.0 is not 0.0. A copy first, as a view of one element may keep its stride.
    raw = [t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in (got, expected)]
    assert torch.equal(*raw), f"got {got}, expected {expected}"


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a view whose neighbours in memory belong to nobody."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    view = wide[..., 0]
    view.copy_(tensor)
    return view


def check_every_op(group: dist.ProcessGroup | None) -> None:
    """All ops of one group, over dtypes, shapes and strides."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    cases = [(torch.float32, shape) for shape in SHAPES]
    cases += [(dtype, shape) for dtype in DTYPES for shape in ((3, 5), (1031,))]
    cases += [(dtype, (LARGE,)) for dtype in (torch.float32, torch.bfloat16)]
    for dtype, shape in cases:
        everybody = [values(shape, dtype, peer) for peer in range(n)]
        total = added(everybody)
        for layout in (torch.clone, strided) if shape != (LARGE,) else (torch.clone,):
            mine = everybody[rank]

            tensor = layout(mine)
            dist.all_reduce(tensor, group=group)
            same(tensor, total)

            for root in {0, n - 1} if dtype is torch.float32 else {n - 1}:
                tensor = layout(mine)
                dist.reduce(tensor, group=group, group_dst=root)
                same(tensor, total if rank == root else mine)
                tensor = layout(mine)
                work = dist.broadcast(tensor, group=group, group_src=root, async_op=True)
                work.wait()
                same(tensor, everybody[root])
                targets = [layout(torch.zeros_like(mine)) for _ in range(n)] if rank == root else None
                dist.gather(layout(mine), targets, group=group, group_dst=root)
                for target, expected in zip(targets or (), everybody, strict=False):
                    same(target, expected)
                sources = [layout(values(shape, dtype, 5 * peer)) for peer in range(n)] if rank == root else None
                target = layout(torch.zeros_like(mine))
                dist.scatter(target, sources, group=group, group_src=root)
                same(target, values(shape, dtype, 5 * rank))

            targets = [layout(torch.zeros_like(mine)) for _ in range(n)]
            dist.all_gather(targets, layout(mine), group=group)
            for target, expected in zip(targets, everybody, strict=True):
                same(target, expected)

            # One rank sends to j what depends on both, so that a wrong place shows.
            sources = [layout(values(shape, dtype, rank * n + peer)) for peer in range(n)]
            targets = [layout(torch.zeros_like(mine)) for _ in range(n)]
            dist.all_to_all(targets, sources, group=group)
            for peer, target in enumerate(targets):
                same(target, values(shape, dtype, peer * n + rank))

            target = layout(torch.zeros_like(mine))
            dist.reduce_scatter(target, sources, group=group)
            same(target, added([values(shape, dtype, peer * n + rank) for peer in range(n)]))

            if shape:
                stacked = torch.stack(everybody).flatten(0, 1)
                target = layout(torch.zeros_like(stacked))
                check_single(group, layout, mine, stacked, target, everybody)
    for shares in ([0, 3, 1, 2][:n], [5, 0, 2, 0][:n]):
        # Rank i sends (i + 1) * shares[j] rows to rank j.
        source = torch.cat(
            [values(((rank + 1) * share, 2), torch.float32, rank * n + j) for j, share in enumerate(shares)]
        )
        received = [(peer + 1) * shares[rank] for peer in range(n)]
        target = torch.empty(sum(received), 2)
        dist.all_to_all_single(target, source, received, [(rank + 1) * share for share in shares], group=group)
        same(
            target, torch.cat([values((rows, 2), torch.float32, peer * n + rank) for peer, rows in enumerate(received)])
        )


def check_single(group, layout, mine, stacked, target, everybody) -> None:
    """The ops on one tensor of all ranks: gathered, scattered, exchanged; and all_gather in place."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    gather_single(target, layout(mine), group=group)
    same(target, stacked)
    part = torch.zeros_like(mine)
    reduce_scatter_single(part, layout(stacked), group=group)
    same(part, added([everybody[rank]] * n))
    dist.all_to_all_single(target, layout(stacked), group=group)
    same(target, torch.cat([everybody[rank]] * n))
    whole = torch.zeros_like(stacked)
    own = whole[rank * mine.shape[0] : (rank + 1) * mine.shape[0]]
    own.copy_(mine)
    gather_single(whole, own, group=group)
    same(whole, stacked)


def every_op() -> None:
    torch.set_num_threads(1)
    check_every_op(None)


def every_op_with_many_blocks_read_directly() -> bool:
    """Blocks of more than 100 bytes are large ones here; returns whether they are read from the memory of peers."""
    torch.set_num_threads(1)
    executor.DIRECT_BYTES = 100
    check_every_op(None)
    n, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.stack([values((LARGE,), torch.float32, rank * n + peer) for peer in range(n)])
    dist.all_to_all_single(tensor, tensor)  # in place
    same(tensor, torch.stack([values((LARGE,), torch.float32, peer * n + rank) for peer in range(n)]))
    # Some pairs exchange nothing, some little, some much.
    sizes = [[(0, 3, LARGE)[(i + 2 * j) % 3] for j in range(n)] for i in range(n)]
    sources = [values((sizes[rank][peer],), torch.uint8, rank * n + peer) for peer in range(n)]
    targets = [torch.zeros(sizes[peer][rank], dtype=torch.uint8) for peer in range(n)]
    dist.all_to_all(targets, sources)
    for peer, target in enumerate(targets):
        same(target, values((sizes[peer][rank],), torch.uint8, peer * n + rank))
    return dist.group.WORLD.single_copy


def every_op_in_subgroups() -> None:
    """Groups made in another order on the two halves, two over the same ranks, and one of a single rank."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([3, 2])]
    again = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = [dist.new_group([member]) for member in range(4)]
    for groups in (again, halves):
        group = groups[rank // 2]
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == (1 if rank < 2 else 5)
    tensor = torch.tensor([5.0])
    dist.all_reduce(tensor, group=alone[rank])
    assert tensor.item() == 5.0
    check_every_op(halves[rank // 2])
    dist.destroy_process_group(again[rank // 2])
    objects: list[object] = [None] * 4
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": member} for member in range(4)]


def ops_of_reduction() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    floats = [torch.tensor([1.5, -2.0, 3.0, float(peer)]) for peer in range(n)]
    whole = [torch.tensor([5 + peer, 12, 3 << peer], dtype=torch.int32) for peer in range(n)]
    expected = {
        dist.ReduceOp.AVG: torch.stack(floats).mean(0),
        dist.ReduceOp.PRODUCT: torch.stack(floats).prod(0),
        dist.ReduceOp.MIN: torch.stack(floats).amin(0),
        dist.ReduceOp.MAX: torch.stack(floats).amax(0),
        dist.ReduceOp.BAND: fold(operator.and_, whole),
        dist.ReduceOp.BOR: fold(operator.or_, whole),
        dist.ReduceOp.BXOR: fold(operator.xor, whole),
    }
    for op, result in expected.items():
        tensor = (floats if result.is_floating_point() else whole)[rank].clone()
        dist.all_reduce(tensor, op=op)
        same(tensor, result)
    inf = torch.tensor([float("inf") * (-1) ** rank, 1.0])
    dist.all_reduce(inf)
    assert inf[0].isnan()


def order_of_additions(dtype: torch.dtype) -> None:
    """Random floats: the bits are those of the schedule's order, on every way through the code."""
    n, rank = dist.get_world_size(), dist.get_rank()
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    for count in (1, 5, 1000, n * 1000, 30_011, n * 50_000):
        everybody = [
            (torch.randn(count, generator=torch.Generator().manual_seed(peer)) * 10).to(dtype) for peer in range(n)
        ]
        expected = torch.empty(count, dtype=dtype)
        schedule = build_schedule(Op.ALL_REDUCE, Torus((n,), (n > 2,)))
        for part, where in enumerate(split(count, n)):
            for sub in reduction_order(schedule, part):
                cut = split(where.stop - where.start, sub.pieces)[sub.piece]
                place = slice(where.start + cut.start, where.start + cut.stop)

                def add(order, place=place, everybody=everybody):
                    if isinstance(order, int):
                        return everybody[order][place].to(wide)
                    return fold(operator.add, map(add, order))

                expected[place] = add(sub.order).to(dtype)
        for limit in (0, 10**9):
            executor.ONE_PHASE_ELEMENTS = limit if count * dtype.itemsize < 1 << 20 else 0
            tensor = everybody[rank].clone()
            dist.all_reduce(tensor)
            same(tensor, expected)
        if count % n == 0:
            part = torch.empty(count // n, dtype=dtype)
            reduce_scatter_single(part, everybody[rank])
            same(part, expected.chunk(n)[rank])
            # In place: the output is a part of the input.
            tensor = everybody[rank].clone()
            own = tensor.chunk(n)[rank]
            reduce_scatter_single(own, tensor)
            same(own, expected.chunk(n)[rank])


def bf16_is_rounded_once() -> list[float]:
    """256 + 1 + 1 + 1 is 260 in bfloat16 when rounded once (259 ties to even), and 256 when rounded each time."""
    rank, n = dist.get_rank(), dist.get_world_size()
    found = []
    for mine in ([256.0] + [1.0] * 3, [4096.0] + [21.0] * 3):
        tensor = torch.full((n,), mine[rank], dtype=torch.bfloat16)
        part = torch.empty(1, dtype=torch.bfloat16)
        reduce_scatter_single(part, tensor)
        dist.all_reduce(tensor)
        assert (tensor == part).all()
        found.append(tensor[0].item())
    return found


def memory_of_others_is_refused() -> None:
    """As on a system that lets no process open the files of another: the named road."""
    if dist.get_rank() == 1:

        def refuse(pid: int, descriptor: int) -> int:
            raise PermissionError(f"/proc/{pid}/fd/{descriptor}")

        rendezvous.open_of_process = refuse
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    assert (tensor == 3).all()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/torchtpu" in line]
    assert mapped
    assert all(line.endswith("(deleted)") for line in mapped)  # it has no name any more while the group still lives


def messages() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    following, before = (rank + 1) % n, (rank - 1) % n
    for count in (0, 1000, 300_000):
        out, into = torch.full((count,), float(rank)), torch.empty(count)
        ops = [dist.P2POp(dist.isend, out, following), dist.P2POp(dist.irecv, into, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert (into == before).all()
    # A large message is passed on while its sender waits in a collective.
    work = dist.isend(out, following)
    if rank % 2 == 0:
        dist.recv(into, before)
    receive = None if rank % 2 == 0 else dist.irecv(strided(into), before)
    dist.barrier()
    if receive is not None:
        receive.wait()
    work.wait()


def fsdp_and_tensor_parallel(folder: str) -> list[float]:
    """Losses of FSDP2 over tensor parallel, 2 x 2, and a checkpoint that comes back."""
    import torch.distributed.checkpoint as checkpoint
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2)))
    for block in model:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    losses = []
    for _ in range(3):
        x = torch.randn(8, 16, generator=generator)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        loss.backward()
        losses += [loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()]
        optimizer.step()
        optimizer.zero_grad()
    state = {"model": model.state_dict()}
    checkpoint.save(state, checkpoint_id=folder)
    before = [parameter.full_tensor().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    checkpoint.load(state, checkpoint_id=folder)
    for parameter, expected in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.full_tensor(), expected)
    return losses


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    before = set(Path("/dev/shm").glob("torchtpu*"))
    yield
    # Another job on this machine may have a segment there for a moment; a leak of ours stays.
    deadline_s = time.monotonic() + 5.0
    while left := set(Path("/dev/shm").glob("torchtpu*")) - before:
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        time.sleep(0.05)


@pytest.mark.parametrize("world_size", [3, 4])
def test_every_op_equals_a_plain_reference(world_size):
    run_ranks(every_op, world_size)


@pytest.mark.parametrize("wish", ["0", "1"])
def test_every_op_whether_or_not_ranks_read_the_memory_of_peers(wish):
    single_copy = run_ranks(every_op_with_many_blocks_read_directly, 3, environment={ENVIRONMENT_KEY: wish})
    assert len(set(single_copy)) == 1
    if wish == "1" and not single_copy[0]:
        pytest.skip("results are right, but this system does not let one process read the memory of another")
    assert single_copy[0] is (wish == "1")


def test_groups_in_any_order_over_the_same_ranks_and_of_one_rank():
    run_ranks(every_op_in_subgroups, 4)


def test_reduce_ops():
    run_ranks(ops_of_reduction, 4)


@pytest.mark.parametrize(
    ("world_size", "dtype"), [(2, torch.float32), (3, torch.bfloat16), (4, torch.float32), (8, torch.bfloat16)]
)
def test_the_bits_are_those_of_the_schedule(world_size, dtype):
    run_ranks(order_of_additions, world_size, dtype)


def test_bf16_is_added_in_float32_and_rounded_once():
    assert run_ranks(bf16_is_rounded_once, 4) == [[260.0, 4160.0]] * 4


def test_a_named_segment_is_the_way_where_processes_cannot_open_each_others_files():
    run_ranks(memory_of_others_is_refused, 3)


def test_messages_in_both_directions_do_not_block_each_other():
    run_ranks(messages, 4)


def test_fsdp_with_tensor_parallel_equals_gloo(tmp_path):
    ici, gloo = (
        run_ranks(fsdp_and_tensor_parallel, 4, str(tmp_path / backend), backend=backend) for backend in ("ici", "gloo")
    )
    assert ici == gloo
