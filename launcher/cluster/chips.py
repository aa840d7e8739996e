"""Where the chips of a host are on the torus of its slice, so that ranks follow the torus whatever hosts are called.

Worker ids are in the order of the torus where the platform gives them out so, and not where they follow the start of
pods. libtpu knows better: ``libtpu.sdk.slice`` tells every chip's index on its host and its coordinates in the slice.
It is asked in a process of its own with a limit: it may keep hold of the chips, which belong to the ranks, and it
takes minutes to give up where it finds no answer. Whatever goes wrong there is a fact and no failure: then worker ids
say the order, and the launcher says so.

None of this could be tried on a TPU. The names of libtpu are those of libtpu 0.0.52, as Ray 2.60 uses them too; that a
chip's index is the index of its device in torch_tpu is taken from their descriptions.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from launcher.cluster.inventory import ClusterHost
from launcher.cluster.layout import Member
from torchtpu_dist.mesh import Slice
from torchtpu_dist.mesh.torus import Coordinate

LIMIT_S = 20.0
_DEVICES = ("dev/accel*", "dev/vfio/[0-9]*")
_MARK = "chips: "
_PROGRAM = f"""
import json
from libtpu import sdk
chips = sdk.slice.get_chip_coordinates()
print({_MARK!r} + json.dumps([[each.hostname(), each.chip_index(), list(each.coordinates())] for each in chips]))
"""

Read = tuple[tuple[Coordinate, ...] | None, str]
"""The coordinates of a host's chips in the order of its devices, else why not; neither where there are no TPUs."""


class KnowsChips(Protocol):
    """What a host says of its chips (:class:`launcher.cluster.preflight.HostFacts`)."""

    @property
    def chips(self) -> tuple[Coordinate, ...] | None:
        """Coordinates in the order of the devices."""

    @property
    def chips_why_not(self) -> str:
        """Why they are not known, although there are TPUs."""


def tpu_devices() -> list[str]:
    """The device files of this host's TPUs."""
    return sorted(str(path) for pattern in _DEVICES for path in Path("/").glob(pattern))


def read_chips(program: str = _PROGRAM, limit_s: float = LIMIT_S) -> Read:
    """Ask libtpu for the chips of this host, which has some."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"libtpu has not answered within {limit_s:g} s"
    except OSError as error:
        return None, f"no process could be started: {error}"
    answer = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), None)
    if answer is None:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return None, f"exit status {done.returncode}: {last[:200]}"
    return _in_order(json.loads(answer.removeprefix(_MARK)))


def _in_order(told: list[tuple[str, int, list[int]]]) -> Read:
    """The chips by their index; those of several hosts cannot be told apart for sure, and are of no use."""
    hosts = sorted({host for host, _, _ in told})
    by_index: dict[int, Any] = {index: tuple(where) for _, index, where in told}
    lengths = {len(where) for where in by_index.values()}
    if len(hosts) != 1 or len(by_index) != len(told) or len(lengths) != 1:
        return None, f"libtpu told of {len(told)} chips with {len(by_index)} indices on {len(hosts)} hosts"
    return tuple(by_index[index] for index in sorted(by_index)), ""


def members(
    slice_: Slice, hosts_of_slices: Sequence[Sequence[ClusterHost]], known: Mapping[str, KnowsChips]
) -> tuple[list[list[Member]], list[str]]:
    """The hosts of each slice for :meth:`Layout.of`, with their chips where these can be relied on.

    Args:
        slice_: what the job runs on.
        hosts_of_slices: the hosts that it has.
        known: by id of node what its host says.

    Returns:
        The members, and a line for each slice with TPUs whose order has to be that of the worker ids.
    """
    found, lines = [], []
    for hosts in hosts_of_slices:
        chips, why_not = _relied_on(slice_, [known[host.node_id] for host in hosts])
        if why_not:
            lines.append(f"ranks of slice {hosts[0].slice_name} follow worker ids: {why_not}")
        if chips is None:
            found.append([Member(host) for host in hosts])
        else:
            found.append([Member(host, own) for host, own in zip(hosts, chips, strict=True)])
    return found, lines


def _relied_on(slice_: Slice, told: Sequence[KnowsChips]) -> tuple[list[tuple[Coordinate, ...]] | None, str]:
    """The chips of each host of one slice if together they are such a slice, counted from 0; else why not."""
    blind = [each for each in told if each.chips is None]
    if blind:
        why = next((each.chips_why_not for each in blind if each.chips_why_not), "")
        some = "" if len(blind) == len(told) else f" on {len(blind)} of {len(told)} hosts"
        return None, f"chip coordinates unreadable{some}: {why}" if why else ""
    sides = len(slice_.topology)
    read = [[tuple(chip[:sides]) for chip in each.chips or ()] for each in told]
    lowest = [min(axis) for axis in zip(*(chip for chips in read for chip in chips), strict=True)]
    counted = [tuple(tuple(a - b for a, b in zip(chip, lowest, strict=True)) for chip in chips) for chips in read]
    one = replace(slice_, num_slices=1)
    if sorted(map(sorted, counted)) != sorted(sorted(place.chips) for place in one.hosts()):
        return (
            None,
            f"the chip coordinates that were read are not those of such a slice ({one}): {read[0]} on a host",
        )
    return counted, ""
