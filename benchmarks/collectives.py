"""``ici`` against ``gloo``: all_reduce, all_gather, reduce_scatter and all_to_all over shared memory and sockets.

    python benchmarks/collectives.py [--quick] [--ranks 2,4,8] [--ops all_reduce,...] [--sizes 1KiB,...]

Both backends live in the same processes of one run and are timed in turn, a few calls of one, a few of the other, so
that whatever else the machine does meets both. A time is that of one call on rank 0, float32, between two barriers;
the table has medians in microseconds and the ratio gloo / ici (more than 1: ici is faster).

The size is that of the *full* array on each rank: the tensor for all_reduce, the gathered output for all_gather, the
input for reduce_scatter, the input (and output) for all_to_all.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from torchtpu_dist.testing.spawn import close_server, run_ranks

SIZES_BYTES = {"1KiB": 1 << 10, "64KiB": 1 << 16, "1MiB": 1 << 20, "16MiB": 1 << 24, "64MiB": 1 << 26}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
BACKENDS = ("ici", "gloo")
_ITEM_BYTES = 4


def make_call(op: str, size_bytes: int, group: dist.ProcessGroup) -> Callable[[], object]:
    """A call of ``op`` on tensors made now."""
    n = group.size()
    full = torch.ones(size_bytes // _ITEM_BYTES)
    other = torch.ones(size_bytes // _ITEM_BYTES)
    part = torch.ones(size_bytes // _ITEM_BYTES // n)
    # The older names run on every supported release; calling the group itself keeps deprecation warnings out.
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: group._allgather_base(full, part).wait(),
        "reduce_scatter": lambda: group._reduce_scatter_base(part, full, dist.ReduceScatterOptions()).wait(),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
    }
    return calls[op]


def measure(op: str, size_bytes: int, groups: dict[str, dist.ProcessGroup], seconds: float) -> dict[str, float]:
    """Median time of a call in microseconds, by backend. Called on all ranks alike."""
    calls = {name: make_call(op, size_bytes, group) for name, group in groups.items()}
    first_us = {name: _time_us(call, groups["ici"]) for name, call in calls.items()}
    first_us = {name: _time_us(call, groups["ici"]) for name, call in calls.items()}
    # Rank 0 decides how often, for all.
    budget_us = seconds * 1e6 / sum(first_us.values())
    repeats = torch.tensor([max(3, min(60, int(budget_us)))])
    dist.broadcast(repeats, 0, group=groups["ici"])
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(int(repeats)):
        for name in BACKENDS if turn % 2 else reversed(BACKENDS):
            times[name].append(_time_us(calls[name], groups["ici"]))
    return {name: statistics.median(each) for name, each in times.items()}


def _time_us(call: Callable[[], object], group: dist.ProcessGroup) -> float:
    dist.barrier(group=group)
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def run_in_rank(ops: list[str], sizes: list[str], seconds: float) -> list[tuple[str, str, float, float]]:
    """All measurements of one world size: op, size, ici and gloo in microseconds."""
    torch.set_num_threads(1)
    ranks = list(range(dist.get_world_size()))
    groups = {name: dist.new_group(ranks, backend=name) for name in BACKENDS}
    rows = []
    for op in ops:
        for size in sizes:
            medians = measure(op, SIZES_BYTES[size], groups, seconds)
            rows.append((op, size, medians["ici"], medians["gloo"]))
    return rows


def main() -> None:
    """Parse the command line, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 ranks, three sizes, short")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--sizes", default=",".join(SIZES_BYTES))
    parser.add_argument("--seconds", type=float, default=2.0, help="time for one line of the table")
    arguments = parser.parse_args()
    ranks, sizes, seconds = arguments.ranks, arguments.sizes, arguments.seconds
    if arguments.quick:
        ranks, sizes, seconds = "8", "1KiB,1MiB,16MiB", 0.7

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, torch {torch.__version__}, float32, medians of one call")
    print(f"{'ranks':>5}  {'op':<15}{'size':>7}{'ici us':>12}{'gloo us':>12}{'gloo/ici':>10}")
    try:
        for world_size in map(int, ranks.split(",")):
            environment = {"OMP_NUM_THREADS": "1"}
            rows = run_ranks(
                run_in_rank,
                world_size,
                arguments.ops.split(","),
                sizes.split(","),
                seconds,
                timeout_s=900,
                environment=environment,
            )[0]
            for op, size, ici_us, gloo_us in rows:
                print(f"{world_size:>5}  {op:<15}{size:>7}{ici_us:>12,.0f}{gloo_us:>12,.0f}{gloo_us / ici_us:>10.1f}")
    finally:
        close_server()


if __name__ == "__main__":
    main()
