"""Why a plan was chosen, in words."""

from torchtpu_dist.collectives.plan import Plan, Stage, part_of
from torchtpu_dist.collectives.profile import Profile
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.torus import Torus


def reason(chosen: Profile, other: Profile | None, network: Network) -> str:
    """What ``chosen`` does on ``network``, and what the next best plan, ``other``, would do better and worse."""
    said = described(chosen.plan, network)
    if other is None:
        return said
    name, ratio = other.plan.algorithm, other.by_byte / chosen.by_byte
    if ratio > 1:
        return f"{said}; {name} would wait for {_apart(chosen, other)}, but take {_times(ratio)} as long for the bytes"
    but = "but" if other.at_no_bytes_us > chosen.at_no_bytes_us else "and"
    return f"{said}; {name} would move the bytes {_times(1 / ratio)} as fast, {but} wait for {_apart(chosen, other)}"


def described(plan: Plan, network: Network) -> str:
    """What is done and over which links."""
    if network.num_ranks == 1:
        return "a single position: nothing to do"
    inside = [stage for stage in plan.stages if not stage.over_dcn]
    said = []
    if network.num_slices > 1:
        said.append(f"{network.num_slices} slices over DCN")
    exchanged = [str(axis) for stage in inside if stage.adds_locally for axis in stage.axes]
    if exchanged:
        many = len(exchanged) > 1
        what = "arrays" if len(exchanged) == len([side for side in network.torus.sides if side > 1]) else "shares"
        said.append(
            f"whole {what} along ax{'es' if many else 'is'} {', '.join(exchanged)}, added where they arrive"
            + (", one axis after the other" if many else "")
        )
    scheduled = [stage for stage in inside if not stage.adds_locally]
    if plan.op is Op.ALL_TO_ALL and len(scheduled) > 1:
        ways = " then ".join(stage.where for stage in scheduled)
        said.append(f"{ways}: too many blocks for one schedule")
    elif scheduled:
        said.append(_links(scheduled[0], part_of(network, scheduled[0].axes).torus))
    return "; ".join(said)


def _links(stage: Stage, torus: Torus) -> str:
    """Which links a stage has."""
    shape = stage.schedule.algorithm
    used = [axis for axis, side in enumerate(torus.sides) if side > 1]
    wrapped = sum(torus.wrap[axis] for axis in used)
    links = sum(2 if torus.wrap[axis] else 1 for axis in used)
    if torus.num_points == 2:
        return "two positions: one link"
    if len(used) == 1:
        return "ring: both links of every position at once" if wrapped else "line: its ends have one link"
    if torus.is_symmetric:
        axes = _axes_in_words(len(used), wrapped, bool(torus.twist))
        return f"{shape}: {axes}, all {links} links of every position at once"
    return (
        f"{shape}: {wrapped or 'none'} of {len(used)} axes wrap{'s' if wrapped == 1 else ''}, {links} links at a corner"
    )


def _axes_in_words(used: int, wrapped: int, twisted: bool) -> str:
    """How the ``used`` axes of a torus without corners close: they wrap, or are a single link."""
    every, single = "both" if used == 2 else f"all {used}", used - wrapped
    if not wrapped:
        return f"{every} axes are a single link"
    if not single:
        return f"{every} axes wrap{', twisted' * twisted}"
    return (
        f"{wrapped} {'axis wraps' if wrapped == 1 else 'axes wrap'}{', twisted' * twisted} and "
        f"{single} {'is' if single == 1 else 'are'} a single link"
    )


def _apart(chosen: Profile, other: Profile) -> str:
    """How many waits more or less ``other`` has."""
    hops, messages = other.hops - chosen.hops, other.dcn_hops - chosen.dcn_hops
    said = []
    for count, unit in ((hops, "hop"), (messages, "message")):
        if count:
            over = " over DCN" if unit == "message" else ""
            said.append(f"{abs(count)} {unit}{'s' if abs(count) > 1 else ''}{over} {'more' if count > 0 else 'less'}")
    return " and ".join(said) or "as many hops"


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times"
