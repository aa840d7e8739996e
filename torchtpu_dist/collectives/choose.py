"""Which plan a collective runs by: all that there are for it are priced, and the cheapest is taken."""

from functools import lru_cache

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.plan import Plan, whole
from torchtpu_dist.collectives.profile import Profile
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.network import Network


def candidates(op: Op, network: Network, root: int = 0) -> tuple[Plan, ...]:
    """All plans for ``op`` among the positions of ``network``."""
    if network.num_slices > 1:
        raise ScheduleError(f"cannot plan {op} over {network.num_slices} slices")
    schedule = build_schedule(op, network.torus, network.capacity, root)
    return (Plan(op, schedule.algorithm, (whole(schedule),)),)


@lru_cache(maxsize=4096)
def profiles(op: Op, network: Network, root: int) -> tuple[Profile, ...]:
    """The cost of each of :func:`candidates`."""
    return tuple(Profile.of(plan, network) for plan in candidates(op, network, root))
