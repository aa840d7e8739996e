"""``torchtpu topology NAME``: what a slice is, in words, as JSON, as a picture."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtpu_dist.cli.drawing import draw_slice
from torchtpu_dist.cli.picture import HTML, PNG, Picture
from torchtpu_dist.mesh import Slice
from torchtpu_dist.mesh.bisection import bisection_links
from torchtpu_dist.mesh.generations import Generation


def topology(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="a slice: v5e-16, v5p:4x4x8, v5p-256_untwisted, 4*v5p-128")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="draw the slice to a .png file")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="draw the slice to an .html file, to be turned and looked into")
    ] = None,
) -> int:
    """Show what the TPU slice NAME is: chips, hosts, links, wrap, distances, bandwidth.

    Links, distances and the bisection are those of ICI between the chips of one slice; chips, devices and hosts are
    counted over all slices. --png and --html need the extra "draw": pip install 'torchtpu-dist[draw]'.
    """
    slice_ = Slice.parse(name)
    # What is wrong with a file is said before anything is printed or drawn.
    pictures = [Picture.to(path, kind) for path, kind in ((png, PNG), (html, HTML)) if path is not None]
    typer.echo(json.dumps(as_object(slice_)) if as_json else "\n".join([*in_words(slice_), "", *draw_slice(slice_)]))
    for picture in pictures:
        picture.draw(slice_)
        typer.echo(f"wrote {picture.path}", err=True)
    return 0


def as_object(slice_: Slice) -> dict[str, Any]:
    """What ``--json`` prints.

    ``topology`` is text (``4x4x8``), ``sides`` the same as numbers (chips); ``wrap`` has a truth value and ``twist`` a
    shift for each axis (:class:`Torus`; None: not twisted). ``num_chips``, ``num_devices``, ``num_hosts`` count all
    slices. ``num_links``, ``diameter``, ``mean_hops`` (over pairs of different chips), ``bisection_links`` and
    ``bisection_gbps`` are of the ICI links between the chips of one slice. ``chip`` has the figures of one chip and
    ``dcn`` what joins several slices (None for one); ``die_link_assumed``: no figure of
    that link is published. Every ``gbps`` is 1e9 bytes a second; those of links, DCN and bisection are one direction.
    """
    generation, torus = slice_.generation, slice_.chip_torus()
    return {
        "generation": generation.name,
        "topology": _text(slice_),
        "wrap": list(slice_.wrap),
        "twisted": slice_.twisted,
        "num_chips": slice_.num_slices * slice_.num_chips,
        "num_devices": slice_.num_devices,
        "num_hosts": slice_.num_hosts,
        "chips_per_host": slice_.chips_per_host,
        "num_links": torus.num_links,
        "diameter": torus.diameter,
        "mean_hops": torus.mean_hops,
        "bisection_gbps": slice_.bisection_gbps,
        "name": slice_.name,
        "num_slices": slice_.num_slices,
        "sides": list(slice_.topology),
        "twist": [list(shift) for shift in torus.twist] or None,
        "bisection_links": bisection_links(torus),
        "chip": {
            "devices": generation.devices_per_chip,
            "bf16_tflops": generation.bf16_tflops,
            "int8_tops": generation.int8_tops,
            "fp8_tflops": generation.fp8_tflops,
            "hbm_gib": generation.hbm_gib,
            "hbm_gbps": generation.hbm_gbps,
            "ici_links": generation.ici_links,
            "ici_link_gbps_oneway": generation.ici_link_gbps_oneway,
            "die_link_gbps_oneway": generation.die_link_gbps_oneway,
            "die_link_assumed": _is_die_link_assumed(generation),
        },
        "dcn": _dcn(slice_) if slice_.num_slices > 1 else None,
    }


def _dcn(slice_: Slice) -> dict[str, float]:
    """Each host has the DCN of its chips, each slice that of its hosts."""
    chip = slice_.generation.dcn_gbps_per_chip_oneway
    return {
        "gbps_per_chip_oneway": chip,
        "gbps_per_host_oneway": chip * slice_.chips_per_host,
        "gbps_per_slice_oneway": chip * slice_.num_chips,
    }


def in_words(slice_: Slice) -> list[str]:
    """The head of the text: a title and a line for each property."""
    generation, torus = slice_.generation, slice_.chip_torus()
    several = slice_.num_slices > 1
    of_all = f" in {slice_.num_slices} slices" if several else ""
    links = bisection_links(torus)
    rows = [
        ("generation", generation.name),
        ("name", _name_in_words(generation)),
        ("topology", _text(slice_) + (", each slice" if several else "")),
        ("wrap", _wrap_in_words(slice_)),
        ("twist", _twist_in_words(slice_)),
        ("chips", f"{slice_.num_slices * slice_.num_chips:,}{of_all}"),
        ("devices", f"{slice_.num_devices:,}, {generation.devices_per_chip} a chip"),
        ("hosts", f"{slice_.num_hosts:,}{of_all}, {_count(slice_.chips_per_host, 'chip')} a host"),
        ("ICI links", f"{torus.num_links:,}" + (" in each slice" if several else "")),
        ("diameter", _count(torus.diameter, "hop")),
        ("mean", f"{torus.mean_hops:.2f} hops between two chips"),
        ("bisection", f"{_count(links, 'link')}, {slice_.bisection_gbps:,.0f} GB/s one way"),
        *_chip_rows(slice_),
    ]
    if several:
        dcn = _dcn(slice_)
        rows += [
            ("DCN", f"joins the {slice_.num_slices} slices through their hosts; one way:"),
            ("", ", ".join(f"{dcn[f'gbps_per_{part}_oneway']:,g} GB/s a {part}" for part in ("chip", "host", "slice"))),
        ]
    column = max(len(name) for name, _ in rows) + 2
    last = ""
    lines = [_title(slice_), ""]
    for name, value in rows:
        lines.append(f"{(name if name != last else '').ljust(column)}{value}")
        last = name
    return lines


def _title(slice_: Slice) -> str:
    shape = _text(slice_)
    wrapping = [name for name, wraps in zip(slice_.axis_names, slice_.wrap, strict=False) if wraps]
    if slice_.num_chips == 1:
        one = "1 chip"
    elif all(slice_.wrap):
        one = f"{slice_.num_chips:,} chips in a {'twisted ' if slice_.twisted else ''}torus of {shape}"
    else:
        closing = f" that closes along {' and '.join(wrapping)}" if wrapping else ""
        one = f"{slice_.num_chips:,} chips in a grid of {shape}{closing}"
    return f"{slice_}: {slice_.num_slices} slices of {one}" if slice_.num_slices > 1 else f"{slice_}: {one}"


def _wrap_in_words(slice_: Slice) -> str:
    names = slice_.axis_names
    wrapping = [name for name, wraps in zip(names, slice_.wrap, strict=False) if wraps]
    if not wrapping:
        return "none: every axis is a line"
    lines = [name for name, wraps in zip(names, slice_.wrap, strict=False) if not wraps]
    return ", ".join(wrapping) + (f"; {', '.join(lines)} is a line" if lines else "")


def _twist_in_words(slice_: Slice) -> str:
    """``x and y: 4 along z``; the drawing says where exactly the wrap lands."""
    if not slice_.twisted:
        return "none"
    names, twist = slice_.axis_names, slice_.chip_torus().twist
    shifting = [axis for axis, shift in enumerate(twist) if any(shift)]
    # All the short axes of a slice shift its long ones alike.
    shift = twist[shifting[0]]
    along = " and ".join(names[to] for to, by in enumerate(shift) if by)
    return f"{' and '.join(names[axis] for axis in shifting)}: {max(shift)} along {along}"


def _chip_rows(slice_: Slice) -> list[tuple[str, str]]:
    generation = slice_.generation
    peaks = [
        (generation.bf16_tflops, "TFLOP/s bf16"),
        (generation.fp8_tflops, "TFLOP/s fp8"),
        (generation.int8_tops, "TOP/s int8"),
    ]
    rows = [
        ("a chip", ", ".join(f"{peak:,g} {unit}" for peak, unit in peaks if peak is not None) + " (peak)"),
        ("a chip", f"{generation.hbm_gib:g} GiB of HBM at {generation.hbm_gbps:,g} GB/s"),
        ("a chip", f"up to {generation.ici_links} ICI links of {generation.ici_link_gbps_oneway:g} GB/s one way"),
    ]
    if generation.die_link_gbps_oneway is not None:
        assumed = " (assumed: none published)" if _is_die_link_assumed(generation) else ""
        rows.append(("a chip", f"{generation.die_link_gbps_oneway:g} GB/s one way between its two devices{assumed}"))
    return rows


def _is_die_link_assumed(generation: Generation) -> bool:
    """Published for tpu7x only (mesh/generations.py); the older ones with two devices a chip take its ratio."""
    return generation.die_link_gbps_oneway is not None and generation.name in ("v2", "v3")


def _name_in_words(generation: Generation) -> str:
    """What the number in the name of a slice counts."""
    if generation.name_counts == "chips":
        return f"the number in {generation.name}-N counts chips"
    return f"the number in {generation.name}-N counts cores, {generation.cores_per_chip} a chip"


def _text(slice_: Slice) -> str:
    return "x".join(map(str, slice_.topology))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
