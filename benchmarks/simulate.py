"""How fast collectives of whole pods are simulated, and in how much memory.

    python benchmarks/simulate.py

Each case runs in a process of its own, on one core, with nothing made before: its time has the making of the schedules
in it (and their pricing, where it says so). Its memory is the most the process ever had, Python and numpy included.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.faults import Faults, price_with_faults
from torchtpu_dist.collectives.groups import Groups
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.collectives.simulate import simulate
from torchtpu_dist.collectives.stream import Stream
from torchtpu_dist.mesh import GENERATIONS, Slice

GIB = 1 << 30
POD = Slice(replace(GENERATIONS["v5p"], max_slice_chips=8960), (16, 20, 28))
"""All chips of a v5p pod; a job may have 6,144 of them."""


def all_reduce() -> str:
    """all-reduce of 1 GiB over the 8,960 chips of a v5p pod"""
    return _at_once([(Op.ALL_REDUCE, Groups.over_axes(POD))])


def all_to_all() -> str:
    """all-to-all of 1 GiB a chip over 1,024 chips, v5p:8x8x16_untwisted"""
    return _at_once([(Op.ALL_TO_ALL, Groups.over_axes(Slice.parse("v5p:8x8x16_untwisted")))])


def twisted() -> str:
    """all-to-all of 1 GiB a chip over 1,024 chips, v5p:8x8x16 (twisted)"""
    return _at_once([(Op.ALL_TO_ALL, Groups.over_axes(Slice.parse("v5p:8x8x16")))])


def priced() -> str:
    """the all-reduce over 8,960 chips, its plan chosen by price"""
    groups = Groups.over_axes(POD)
    plan = price(Op.ALL_REDUCE, GIB, groups.network).plan
    return _said([Stream(plan, groups, GIB)])


def two_at_once() -> str:
    """all-gather under reduce-scatter of 1 GiB, both over all 8,960 chips"""
    groups = Groups.over_axes(POD)
    return _at_once([(Op.ALL_GATHER, groups), (Op.REDUCE_SCATTER, groups)])


def three_axes() -> str:
    """all groups along x, y and z of 8,960 chips at once: all-gather, reduce-scatter, all-to-all"""
    ops = {"x": Op.ALL_GATHER, "y": Op.REDUCE_SCATTER, "z": Op.ALL_TO_ALL}
    return _at_once([(op, Groups.over_axes(POD, [axis])) for axis, op in ops.items()])


def dead_link() -> str:
    """the all-reduce over 8,960 chips with a dead link, healthy and not, priced"""
    found = price_with_faults(Op.ALL_REDUCE, GIB, Groups.over_axes(POD), Faults.parse(["3,4,5-3,4,6"]))
    return f"{found.slow_down:.3f} times as long, by {found.how}"


CASES: dict[str, Callable[[], str]] = {
    case.__name__: case for case in (all_reduce, all_to_all, twisted, priced, two_at_once, three_axes, dead_link)
}


def _at_once(work: Sequence[tuple[Op, Groups]]) -> str:
    return _said([Stream(build_schedule(op, groups.torus), groups, GIB) for op, groups in work])


def _said(streams: Sequence[Stream]) -> str:
    found = simulate(Fabric.of(streams[0].groups.slice), streams)
    return f"{found.total_us / 1e3:.2f} ms on the chips, links {found.utilisation:.1%} used"


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast collectives of whole pods are simulated.")
    parser.add_argument("--case", choices=CASES, help="run this one, in this process")
    case = parser.parse_args().case
    if case is None:
        for name in CASES:
            subprocess.run([sys.executable, __file__, "--case", name], check=True)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    start = time.perf_counter()
    said = CASES[case]()
    seconds, mib = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:6.2f} s {mib:5.0f} MiB  {CASES[case].__doc__}: {said}")


if __name__ == "__main__":
    main()
