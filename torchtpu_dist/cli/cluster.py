"""``torchtpu cluster``: what runs jobs on Kubernetes, and what slices a Ray cluster has."""

import importlib.metadata
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtpu_dist.errors import RecipeError, SliceError
from torchtpu_dist.mesh import Slice

if TYPE_CHECKING:
    from rich.table import Table

    from launcher.cluster.inventory import ClusterSlice

_HELP = {"help_option_names": ["-h", "--help"]}
_ADDRESS = "the cluster's head, HOST:6379  [default: RAY_ADDRESS, else the cluster that runs on this machine]"
_MIN_SLICES = "with how many slices the run may go on when some are lost  [default: all]"
_IMAGE = "container image with torchtpu-dist, torch_tpu and Ray  [default: a placeholder to be replaced]"
_RAY_VERSION = "Ray in the image  [default: the one installed here]"

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True, context_settings=_HELP)


@app.callback()
def cluster() -> None:
    """Ray clusters of TPU slices: write their Kubernetes manifest, show what state their slices are in."""


@app.command(context_settings=_HELP, short_help="KubeRay YAML for GKE TPU node pools")
def manifest(
    slice_name: Annotated[str, typer.Option("--slice", metavar="NAME", help="a slice: v5p-128, v6e-16, tpu7x-8")],
    slices: Annotated[int | None, typer.Option(help="how many of them  [default: 1]", show_default=False)] = None,
    kind: Annotated[str, typer.Option(help="RayJob: runs a recipe; RayCluster: jobs are submitted to it")] = "RayJob",
    name: Annotated[
        str | None,
        typer.Option(help="name of the object, and of the run  [default: from the slice]", show_default=False),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="namespace  [default: none is written]")] = None,
    image: Annotated[str | None, typer.Option(help=_IMAGE, show_default=False)] = None,
    recipe: Annotated[
        str | None, typer.Option(help="what a RayJob runs  [default: llama3_debug]", show_default=False)
    ] = None,
    min_slices: Annotated[int | None, typer.Option(help=_MIN_SLICES, show_default=False)] = None,
    ray_version: Annotated[str | None, typer.Option(help=_RAY_VERSION, show_default=False)] = None,
) -> int:
    """Print KubeRay YAML that runs a recipe on TPU slices of GKE; comments say why each field is there.

    docs/ray.md tells what else the GKE cluster needs: node pools, KubeRay with its TPU webhook, a shared volume.
    """
    from launcher.cluster.manifest import DEFAULT_RECIPE, PLACEHOLDER_IMAGE
    from launcher.cluster.manifest import manifest as write

    if kind == "RayCluster" and recipe is not None:
        raise RecipeError(f"--recipe {recipe}: a RayCluster runs none; submit it, or write --kind RayJob")
    text = write(
        kind,
        _slices(slice_name, slices),
        min_slices=min_slices,
        name=name,
        namespace=namespace,
        image=image or PLACEHOLDER_IMAGE,
        recipe=recipe or DEFAULT_RECIPE,
        ray_version=ray_version or importlib.metadata.version("ray"),
    )
    typer.echo(text, nl=False)
    if image is None:
        typer.echo("the image is a placeholder: give --image, or replace it in the output", err=True)
    return 0


@app.command(context_settings=_HELP, short_help="slices of a Ray cluster: idle, busy, draining, broken, quarantined")
def status(
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_ADDRESS, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
) -> int:
    """Show the TPU slices of a running Ray cluster and what state each is in, and why."""
    from rich.console import Console

    from launcher.cluster.look import look, resolve

    head = resolve(address)
    with _silent_stderr():
        slices = look(head)
    if as_json:
        typer.echo(json.dumps(as_object(head, slices)))
    elif slices:
        Console().print(as_table(slices))
    else:
        typer.echo(f"no TPU slices on the Ray cluster at {head}")
    return 0


def as_object(address: str, slices: "tuple[ClusterSlice, ...]") -> dict[str, Any]:
    """What ``status --json`` prints: ``slices`` with their ``state`` and ``why``, and the hosts by worker id.

    ``deadline_s`` is the time by which a draining host is gone, in seconds since the epoch; None: not known.
    """
    return {
        "address": address,
        "slices": [
            {
                "name": each.name,
                "pod_type": each.pod_type,
                "topology": each.topology,
                "state": each.state,
                "why": each.why,
                "hosts_alive": _alive(each),
                "hosts_expected": each.expected_hosts,
                "hosts": [
                    {
                        "worker_id": host.worker_id,
                        "address": host.address,
                        "node_id": host.node_id,
                        "alive": host.alive,
                        "draining": host.draining,
                        "deadline_s": host.deadline_s,
                        "num_tpus": host.num_tpus,
                    }
                    for host in each.hosts
                ],
            }
            for each in slices
        ],
    }


def as_table(slices: "tuple[ClusterSlice, ...]") -> "Table":
    """What ``status`` prints: a line for each slice."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="")
    for heading in ("SLICE", "TYPE", "TOPOLOGY", "HOSTS", "STATE", "WHY"):
        table.add_column(heading, overflow="fold")
    for each in slices:
        hosts = f"{_alive(each)}/{each.expected_hosts}"
        row = (each.name, each.pod_type, each.topology, hosts, str(each.state), each.why)
        table.add_row(*(Text(cell or "") for cell in row))
    return table


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Ray's compiled part writes there what we say in one line."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _alive(slice_: "ClusterSlice") -> int:
    return sum(host.alive for host in slice_.hosts)


def _slices(name: str, number: int | None) -> Slice:
    """``number`` slices called ``name``; the number may also be part of the name (``2*v5p-128``)."""
    slice_ = Slice.parse(name)
    if number is None:
        return slice_
    if number < 1:
        raise RecipeError(f"--slices {number}: expected 1 or more")
    if slice_.num_slices not in (1, number):
        raise SliceError(f"--slice {name} is {slice_.num_slices} slices and --slices {number}: say it once")
    return Slice(slice_.generation, slice_.topology, num_slices=number, twisted=slice_.twisted)
