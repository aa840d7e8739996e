"""Which plan a collective runs by: all that there are for it are priced, and the cheapest is taken.

What a plan costs is a straight line over the bytes, so only plans on the lower envelope of all lines are ever cheapest,
each for one range of sizes, and from one range to the next the cost goes on rising.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from operator import itemgetter

from torchtpu_dist.collectives.algorithms import piece_counts
from torchtpu_dist.collectives.algorithms.axis_by_axis import all_to_all_stages
from torchtpu_dist.collectives.algorithms.exchange import exchange, share_in_the_middle, used_axes
from torchtpu_dist.collectives.algorithms.hierarchical import (
    from_root,
    in_pieces,
    over_slices,
    scatter_and_gather,
    to_root,
)
from torchtpu_dist.collectives.plan import Plan, Stage, added_up, all_axes, dcn_stage, slice_stage
from torchtpu_dist.collectives.profile import Profile, bound_by_byte
from torchtpu_dist.collectives.reason import reason
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.network import Network


@dataclass(frozen=True, eq=False)
class Choice:
    """The plans for one op of one group, priced.

    Attributes:
        network: what joins the group.
        all: every one by the name of its algorithm.
        best: those that are cheapest for some size, the one for the smallest first.
        bound_by_byte: microseconds for each byte of the full array that no plan can do without.
    """

    network: Network
    all: dict[str, Profile]
    best: tuple[Profile, ...]
    bound_by_byte: float
    _reasons: dict[tuple[Profile, Profile | None], str] = field(default_factory=dict)

    @classmethod
    def of(cls, op: Op, network: Network, root: int) -> "Choice":
        """The choice there is; the same object for the same arguments."""
        return _choice(op, network, root)

    def named(self, algorithm: str) -> Profile:
        """The plan called ``algorithm``.

        Raises:
            ScheduleError: there is none.
        """
        if algorithm not in self.all:
            raise ScheduleError(
                f"no algorithm {algorithm!r} for this op and group: expected auto or one of "
                f"{', '.join(map(repr, self.all))}"
            )
        return self.all[algorithm]

    def ranked(self, full_bytes: int) -> list[tuple[float, Profile]]:
        """(microseconds, plan) of the best plans for a full array of ``full_bytes``, fastest first."""
        timed = [(profile.at_no_bytes_us + profile.by_byte * full_bytes, profile) for profile in self.best]
        timed.sort(key=_time)
        return timed

    def reason(self, chosen: Profile, other: Profile | None) -> str:
        """In words, why ``chosen`` and not ``other``."""
        key = chosen, other
        if key not in self._reasons:
            self._reasons[key] = reason(chosen, other, self.network)
        return self._reasons[key]


_time = itemgetter(0)


@lru_cache(maxsize=1024)
def _choice(op: Op, network: Network, root: int) -> Choice:
    profiles = [Profile.of(plan, network) for plan in candidates(op, network, root)]
    by_name = {profile.plan.algorithm: profile for profile in profiles}
    assert len(by_name) == len(profiles), "two plans have one name"
    return Choice(network, by_name, lower_envelope(profiles), bound_by_byte(op, network))


def lower_envelope(profiles: list[Profile]) -> tuple[Profile, ...]:
    """The profiles that are lowest for some number of bytes, by rising cost of no bytes; of equal ones the first."""
    kept: list[Profile] = []
    for profile in sorted(profiles, key=lambda profile: (profile.at_no_bytes_us, profile.by_byte)):
        if kept and profile.by_byte >= kept[-1].by_byte:
            continue
        # A line is out when the one before it and the new one meet below it.
        while len(kept) > 1 and _meet(kept[-2], profile) <= _meet(kept[-2], kept[-1]):
            kept.pop()
        kept.append(profile)
    return tuple(kept)


def _meet(early: Profile, late: Profile) -> float:
    """The bytes from which on ``late`` is cheaper than ``early``."""
    return (late.at_no_bytes_us - early.at_no_bytes_us) / (early.by_byte - late.by_byte)


def candidates(op: Op, network: Network, root: int = 0) -> Iterator[Plan]:
    """All plans for ``op`` among the positions of ``network``.

    Raises:
        ScheduleError: a root that is no position.
    """
    if not 0 <= root < network.num_ranks:
        raise ScheduleError(f"cannot plan {op}: got root {root}, expected a position in 0..{network.num_ranks - 1}")
    if op is Op.ALL_REDUCE:
        yield from _all_reduces(network)
    elif network.num_slices == 1:
        yield from _in_one_slice(op, network, root)
    elif op.has_root:
        yield from _with_root_over_slices(op, network, root)
    else:
        for stages in over_slices(op, network):
            name = "DCN" if len(stages) == 1 else "DCN first" if stages[0].over_dcn else "DCN last"
            inside = [stage for stage in stages if not stage.over_dcn]
            yield Plan(op, f"{name}, {_in_turn(inside)}" if len(inside) > 1 else name, stages)


def _in_one_slice(op: Op, network: Network, root: int) -> Iterator[Plan]:
    if op is Op.ALL_TO_ALL:
        for stages in all_to_all_stages(network):
            yield Plan(op, _in_turn(stages) if len(stages) > 1 else stages[0].schedule.algorithm, stages)
        return
    for pieces in piece_counts(network.torus, network.capacity, root) if op.has_root else (None,):
        stage = slice_stage(op, network, all_axes(network), root=root, pieces=pieces)
        name = stage.schedule.algorithm + (f", {in_pieces(pieces)}" if pieces else "")
        yield Plan(op, name, (stage,), root)
    if op.has_root and network.num_ranks > 2:
        yield Plan(op, f"{stage.schedule.algorithm}, scatter and gather", scatter_and_gather(network), root)


def _in_turn(stages: Sequence[Stage]) -> str:
    """``axes 0, 2 then axis 1``: what several stages inside a slice are called."""
    return " then ".join(stage.where for stage in stages)


def _with_root_over_slices(op: Op, network: Network, root: int) -> Iterator[Plan]:
    ways = from_root if op is Op.BROADCAST else to_root
    counts = piece_counts(network.torus, network.capacity, root % network.torus.num_points)
    for scatters in (False, True) if network.num_slices > 2 else (False,):
        for name, stages in ways(network, root, counts, scatters):
            yield Plan(op, name + (", DCN scattered" if scatters else ""), stages, root)


def _all_reduces(network: Network) -> Iterator[Plan]:
    used = used_axes(network)
    for size in range(len(used) + 1):
        for axes in combinations(used, size):
            for between, middle in _middles(network, axes):
                if not axes and network.num_slices == 1:
                    stages: tuple[Stage, ...] = (slice_stage(Op.ALL_REDUCE, network, all_axes(network)),)
                else:
                    stages = exchange(network, axes, middle)
                names = [_name(network, axes)] if used or network.num_slices == 1 else []
                yield Plan(Op.ALL_REDUCE, ", ".join(names + between), stages)


def _middles(network: Network, axes: tuple[int, ...]) -> Iterator[tuple[list[str], tuple[Stage, ...]]]:
    """How what an all-reduce does between slices is called, and the stages of it."""
    if network.num_slices == 1:
        yield [], ()
        return
    share = share_in_the_middle(network, axes)
    yield ["DCN"], (dcn_stage(Op.ALL_REDUCE, network, share),)
    yield ["DCN exchange"], (added_up(dcn_stage(Op.ALL_GATHER, network, share), share),)


def _name(network: Network, axes: tuple[int, ...]) -> str:
    """What an all-reduce that exchanges along ``axes`` is called, as far as it runs inside the slices."""
    used = used_axes(network)
    if not axes:
        return slice_stage(Op.ALL_GATHER, network, all_axes(network)).schedule.algorithm
    if axes == used:
        return "exchange"
    return f"exchange along ax{'i' if len(axes) == 1 else 'e'}s {', '.join(map(str, axes))}"
