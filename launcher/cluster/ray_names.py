"""Ray's names of TPU slices: the labels and resources of its nodes, read and written."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import Slice

SLICE_NAME = "ray.io/tpu-slice-name"
WORKER_ID = "ray.io/tpu-worker-id"
TOPOLOGY = "ray.io/tpu-topology"
POD_TYPE = "ray.io/tpu-pod-type"
ACCELERATOR_TYPE = "ray.io/accelerator-type"

_RAY_GENERATIONS = {"v5e": "v5litepod", "tpu7x": "v7x"}  # all others have the same name here and there
_GENERATIONS = {theirs: ours for ours, theirs in _RAY_GENERATIONS.items()}


def pod_type(slice_: Slice) -> str:
    """The type of one slice of ``slice_``: ``v5p-16``, ``v5litepod-8``, ``v7x-16``."""
    generation = slice_.generation
    name = _RAY_GENERATIONS.get(generation.name, generation.name)
    return f"{name}-{slice_.num_chips * generation.count_per_chip}"


def topology(slice_: Slice) -> str:
    """The chips of one slice of ``slice_``: ``2x2x2``."""
    return "x".join(map(str, slice_.topology))


def parse(pod_type: str, topology: str) -> Slice | None:
    """The slice of this type and topology, of which the topology counts and may be empty; None: there is no such."""
    generation, _, count = pod_type.rpartition("-")
    shape = f":{topology}" if topology else f"-{count}"
    try:
        return Slice.parse(f"{_GENERATIONS.get(generation, generation)}{shape}")
    except SliceError:
        return None


def type_and_topology(nodes: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Of the slice that ``nodes`` belong to: what most of them say; what none says follows from the rest if it can."""
    said_topology = _most_common(node["Labels"].get(TOPOLOGY, "").lower() for node in nodes)
    said_type = _most_common(_written_as_ray(node["Labels"].get(POD_TYPE, "").lower()) for node in nodes)
    if said_type and said_topology:
        return said_type, said_topology
    slice_ = parse(said_type or f"{_most_common(map(_accelerator, nodes))}-", said_topology)
    if slice_ is None:
        return said_type, said_topology
    return said_type or pod_type(slice_), said_topology or topology(slice_)


def _accelerator(node: Mapping[str, Any]) -> str:
    """The generation in Ray's accelerator type: ``v5p`` of ``TPU-V5P``; empty if it is not said."""
    resources = (name.removeprefix("accelerator_type:") for name in node["Resources"] if ":TPU-V" in name)
    return next(iter([*filter(None, [node["Labels"].get(ACCELERATOR_TYPE)]), *resources]), "")[4:].lower()


def _written_as_ray(pod_type: str) -> str:
    """Platforms also write ``tpu7x-16`` and ``v5e-8``."""
    generation, dash, count = pod_type.rpartition("-")
    return f"{_RAY_GENERATIONS.get(generation, generation)}{dash}{count}"


def _most_common(values: Iterable[str]) -> str:
    counted = Counter(value for value in values if value)
    return min(counted, key=lambda value: (-counted[value], value)) if counted else ""


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``emu-2`` before ``emu-10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", name)]
