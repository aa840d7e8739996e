"""The price of a collective as ``torchtpu collective`` prints it: in words, 80 columns wide, and as an object."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from torchtpu_dist.cli.group import CORE, Group
from torchtpu_dist.cli.question import MOST_PROVEN, Question, num_transfers
from torchtpu_dist.cli.sizes import bytes_text
from torchtpu_dist.cli.times import us_text
from torchtpu_dist.collectives.algorithms.gather import name_of
from torchtpu_dist.collectives.cost import Price
from torchtpu_dist.collectives.faults import FaultReport
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh import Slice
from torchtpu_dist.mesh.torus import Torus

_COLUMNS = 80
_LABEL = 14
_MOST_ALTERNATIVES = 5
_MOST_DETOURS = 4
_MOST_ADOPTED = 4
_LEFT_OUT = "what a chip does itself (adding, copying into place), ranks that come late, other traffic"
_FULL = {
    Op.ALL_REDUCE: "the input",
    Op.ALL_GATHER: "the gathered array",
    Op.REDUCE_SCATTER: "the input",
    Op.BROADCAST: "the array",
    Op.REDUCE: "the input",
    Op.ALL_TO_ALL: "what each device holds",
}


def as_object(price: Price, question: Question, faults: FaultReport | None = None) -> dict[str, Any]:
    """What ``--json`` prints.

    ``steps`` are slots of the links' time; ``bytes`` and ``algbw_gbps`` are of the full array; ``gbps`` is 1e9 bytes a
    second. ``bound_us`` is the least that the bytes can take; ``time_over_bound`` is None where nothing has to move.
    ``num_ranks`` is the size of a group, of which ``num_groups`` run side by side. ``root`` is a position, None for an
    op without one. ``stages`` run one after the other; ``share`` is a stage's full array over that of the op. All this
    is without faults; ``faults`` is what they do to it, None where none were asked for. Its ``slow_down`` is None where
    members are lost (its ``num_ranks`` go on). ``proven``: every transfer of the plan was checked, which is left out
    (false) only for plans of more than :data:`~torchtpu_dist.cli.question.MOST_PROVEN` transfers. ``where`` of a stage
    names axes, ``slice`` (all axes) or ``DCN``.
    """
    group = question.group
    named = group.by_axis_names
    return {
        "algorithm": named(price.algorithm),
        "steps": price.num_steps,
        "time_us": price.time_us,
        "algbw_gbps": price.algbw_gbps,
        "busbw_gbps": price.busbw_gbps,
        "bound_us": price.bound_us,
        "link_utilisation": price.link_utilisation,
        "op": str(price.op),
        "slice": group.slice.name,
        "axes": list(group.axes),
        "bytes": price.full_bytes,
        "num_ranks": price.num_ranks,
        "num_groups": group.num_groups,
        "root": question.root if price.op.has_root else None,
        "fixed_us": price.fixed_us,
        "latency_us": price.latency_us,
        "transfer_us": price.transfer_us,
        "dcn_us": price.dcn_us,
        "time_over_bound": price.time_us / price.bound_us if price.bound_us else None,
        "why": _why(price, group),
        "proven": question.prove(price) is not None,
        "stages": [
            {
                "op": str(stage.op),
                "where": named(stage.where),
                "algorithm": stage.schedule.algorithm,
                "steps": stage.schedule.num_steps,
                "share": float(stage.share),
            }
            for stage in price.plan.stages
        ],
        "alternatives": [{"algorithm": named(name), "time_us": time_us} for name, time_us in price.alternatives],
        "faults": None if faults is None else _faults_as_object(faults, question),
    }


def _faults_as_object(faults: FaultReport, question: Question) -> dict[str, Any]:
    return {
        "faults": question.faults_in_words,
        "time_us": faults.time_us,
        "healthy_us": faults.healthy_us,
        "slow_down": faults.slow_down,
        "how": faults.how,
        "detours": list(faults.detours),
        "adopted": list(faults.adopted),
        "num_ranks": faults.num_ranks,
        "others": list(faults.others),
    }


def in_words(price: Price, question: Question, faults: FaultReport | None = None) -> list[str]:
    """What is printed without ``--json``; no line is longer than 80 columns."""
    group = question.group
    title = f"{price.op} of {bytes_text(price.full_bytes)} ({_FULL[price.op]}) on {group.slice}, modelled"
    lines = [*wrap(title, _COLUMNS), ""]
    rows = _rows(price, question)
    if faults is not None:
        rows += [("faults", "; ".join(question.faults_in_words)), *_fault_rows(faults)]
    for label, text in [*rows, ("left out", _LEFT_OUT)]:
        first, *more = wrap(text, _COLUMNS - _LABEL, break_on_hyphens=False)
        lines += [f"{label:<{_LABEL}}{first}", *(" " * _LABEL + line for line in more)]
    return lines


def _rows(price: Price, question: Question) -> list[tuple[str, str]]:
    group = question.group
    parts = [("fixed", price.fixed_us), ("latency", price.latency_us), ("transfer", price.transfer_us)]
    if group.network.num_slices > 1:
        parts.append(("DCN", price.dcn_us))
    rows = [
        ("slice", slice_in_words(group.slice)),
        ("group", group_in_words(group)),
        ("algorithm", group.by_axis_names(price.algorithm)),
        ("why", _why(price, group)),
        ("steps", str(price.num_steps)),
        ("time", f"{us_text(price.time_us)} = " + " + ".join(f"{us_text(time)} {name}" for name, time in parts)),
        ("bandwidth", f"{price.algbw_gbps:.4g} GB/s algorithm, {price.busbw_gbps:.4g} GB/s bus"),
        ("bound", _bound(price)),
        ("proven", _proven(price, question)),
    ]
    if group.physical:
        used = f"{price.link_utilisation:.1%} of what the group's ICI links could carry in that time"
        rows.append(("links", used))
    if price.op.has_root:
        rows.insert(2, ("root", f"position {question.root} of 0 to {group.size - 1}"))
    return rows + _alternatives([(group.by_axis_names(name), time_us) for name, time_us in price.alternatives])


def _fault_rows(faults: FaultReport) -> list[tuple[str, str]]:
    """The time with the faults, and how it is reached."""
    rows = [("with faults", _with_faults(faults))]
    rows += [("" if number else "adopted", adopted) for number, adopted in enumerate(faults.adopted[:_MOST_ADOPTED])]
    if len(faults.adopted) > _MOST_ADOPTED:
        rows.append(("", f"and {len(faults.adopted) - _MOST_ADOPTED} more"))
    rows += [("" if number else "detours", detour) for number, detour in enumerate(faults.detours[:_MOST_DETOURS])]
    if len(faults.detours) > _MOST_DETOURS:
        rows.append(("", f"and {len(faults.detours) - _MOST_DETOURS} more"))
    return rows + [("" if number else "other ways", other) for number, other in enumerate(faults.others)]


def _with_faults(faults: FaultReport) -> str:
    """The time; against the healthy one only where the same members take part."""
    time, left, all_ = us_text(faults.time_us), faults.num_ranks, faults.all_ranks
    if faults.slow_down is None:
        healthy = f"(healthy, with all {all_}: {us_text(faults.healthy_us)})"
        if left == 1:
            return f"1 of {all_} members is left in a group, with nobody to talk to: {time} for all groups {healthy}"
        return f"{left} of {all_} members go on: {time} {healthy}, by {faults.how}"
    if faults.how == "as before":
        return f"{time}, as before: no group uses what is broken"
    return f"{time}, {faults.slow_down:.3g} times as long, by {faults.how}"


def slice_in_words(slice_: Slice) -> str:
    """Shape, chips, and which axes wrap."""
    text = f"{'x'.join(map(str, slice_.topology))}, {slice_.num_chips} chip{'s' * (slice_.num_chips != 1)}"
    if slice_.generation.devices_per_chip == 2:
        text += " of two devices"
    if slice_.num_slices > 1:
        text = f"{slice_.num_slices} slices of {text} each, joined by DCN"
    names = [name for name, wraps in zip(slice_.axis_names, slice_.wrap, strict=False) if wraps]
    if not names:
        return f"{text}; no axis wraps"
    return f"{text}; {', '.join(names)} wrap{'s' * (len(names) == 1)}{', twisted' if slice_.twisted else ''}"


def group_in_words(group: Group) -> str:
    """Axes, size, how many run side by side, shape, and what a link carries."""
    network = group.network
    torus, names = network.torus, [group.slice.axis_names[axis] for axis in group.physical]
    texts = [group.in_words]
    if names:
        texts.append(_shape(torus, names))
        rates = sorted(set(network.link_gbps))
        along = [[name for name, own in zip(names, network.link_gbps, strict=True) if own == rate] for rate in rates]
        each = [
            f"{rate:g} GB/s" + f" along {', '.join(on)}" * (len(rates) > 1)
            for rate, on in zip(rates, along, strict=True)
        ]
        shared = group.slice.generation.ici_link_gbps_oneway
        if group.slice.generation.devices_per_chip == 2 and shared / 2 in rates:
            which = f"{shared / 2:g} is half" if len(rates) > 1 else "half"
            half = f" ({which} of {shared:g}: the two devices of a chip share its links)"
        else:
            half = ""
        texts.append(f"a link carries {' and '.join(each)} each way{half}")
    if network.num_slices > 1:
        texts.append(f"DCN {network.dcn_gbps:g} GB/s a device")
    return "; ".join(texts)


def _shape(torus: Torus, names: Sequence[str]) -> str:
    """``a ring of 16``; of a slice with two devices a chip ``a torus of 4x4x4 chips, 2 devices each``."""
    chips = [side for side, name in zip(torus.sides, names, strict=True) if name != CORE]
    if not chips:
        return "the two devices of a chip"
    text = f"a {'twisted ' if torus.twist else ''}{name_of(torus)} of {'x'.join(map(str, chips))}"
    return text if CORE not in names else f"{text} chips, 2 devices each"


def _bound(price: Price) -> str:
    if not price.bound_us:
        return "0 us: no byte has to move"
    ratio = price.time_us / price.bound_us
    return (
        f"{us_text(price.bound_us)} for the bytes alone; the time is {ratio:,.{0 if ratio >= 100 else 2}f} times that"
    )


def _alternatives(alternatives: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """One row each, the first with the label."""
    rows = [f"{us_text(time_us)}  {name}" for name, time_us in alternatives[:_MOST_ALTERNATIVES]]
    if len(alternatives) > _MOST_ALTERNATIVES:
        rows.append(f"and {len(alternatives) - _MOST_ALTERNATIVES} more")
    return [("" if number else "alternatives", row) for number, row in enumerate(rows)]


def _why(price: Price, group: Group) -> str:
    """The reason with axes by name, and where a wrap goes that the slice has and the group has not."""
    said = [group.by_axis_names(price.why)]
    said += [
        f"the twist sends the wrap of {axis} to another group ({by})" for axis, by in group.opened_by_twist.items()
    ]
    return "; ".join(said)


def _proven(price: Price, question: Question) -> str:
    over = question.prove(price)
    if over is None:
        return f"not checked here ({num_transfers(price):,} transfers, more than {MOST_PROVEN:,})"
    if not price.bound_us:
        return "every transfer checked; no byte has to move"
    return f"every transfer checked; the bytes take {over:.4g} times the least"
