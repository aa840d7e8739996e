"""What KubeRay is told to run a job on GKE: a RayJob, or a RayCluster to submit jobs to, as commented YAML.

One worker group; a replica of it is a slice, a host of a replica is a pod on a node of the slice's node pool. What
the TPU needs to know of its slice is not here: KubeRay's TPU webhook gives pods their slice and worker id, from which
Ray makes its labels, and the launcher computes the rest for each attempt.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from launcher.cluster import ray_names
from launcher.cluster.commented_yaml import dump
from launcher.cluster.gke import NodePool, node_pool
from launcher.cluster.manifest_reasons import WHY
from launcher.environment import MEGASCALE_PORT, SLICE_BUILDER_PORT
from torchtpu_dist.errors import RecipeError
from torchtpu_dist.mesh import Slice

PLACEHOLDER_IMAGE = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/torchtpu:TAG"
DEFAULT_RECIPE = "llama3_debug"
OUTPUT_CLAIM = "torchtpu-output"
OUTPUT_PATH = "/output"

# KubeRay appends to these names and keeps the result within the 63 characters of a host name.
_MOST_CHARACTERS: Mapping[str, int] = {"RayJob": 47, "RayCluster": 53}
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, which KubeRay asks of names
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123

_AGENT_PORT = 52365
_METRICS_PORT = 8500
_CPUS_PER_CHIP = 8
_MEMORY_GB_PER_CHIP = 40

# With these a host whose process is gone counts as dead after 5 x 1 s, one that does not answer after 5 x (1 + 3) s.
# Ray's own are 3 s, 10 s and 5: 15 s and 65 s. Five in a row, because hosts that are only busy must not be dropped.
_HEALTH_CHECKS = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}


def manifest(
    kind: str,
    slice_: Slice,
    *,
    min_slices: int | None = None,
    name: str | None = None,
    namespace: str | None = None,
    image: str = PLACEHOLDER_IMAGE,
    recipe: str = DEFAULT_RECIPE,
    ray_version: str,
) -> str:
    """KubeRay YAML for ``slice_.num_slices`` slices, with comments.

    ``kind`` is ``RayJob`` or ``RayCluster``; ``recipe`` is read by a RayJob alone. A job that loses slices goes on with
    ``min_slices`` or more (None: with all only). ``ray_version`` is that of ``image``.

    Raises:
        RecipeError: an argument is wrong; SliceError: GKE or KubeRay cannot have this slice.
    """
    plain = document(
        kind,
        slice_,
        min_slices=min_slices,
        name=name,
        namespace=namespace,
        image=image,
        recipe=recipe,
        ray_version=ray_version,
    )
    return "\n".join([*_head_of(kind, slice_), dump(plain, WHY)[0]])


def document(
    kind: str,
    slice_: Slice,
    *,
    min_slices: int | None = None,
    name: str | None = None,
    namespace: str | None = None,
    image: str = PLACEHOLDER_IMAGE,
    recipe: str = DEFAULT_RECIPE,
    ray_version: str,
) -> dict[str, Any]:
    """What :func:`manifest` writes, as plain data; raises as it does."""
    if kind not in _MOST_CHARACTERS:
        raise RecipeError(f"--kind {kind}: expected RayJob or RayCluster")
    least = slice_.num_slices if min_slices is None else min_slices
    if not 1 <= least <= slice_.num_slices:
        raise RecipeError(
            f"--min-slices {least}: expected 1 to {slice_.num_slices}, the number of slices; raise --slices for more"
        )
    pool = node_pool(slice_)
    if kind == "RayJob" and slice_.num_slices > 1 and pool.num_nodes == 1:
        raise RecipeError(
            f"slice {slice_}: GKE joins slices by DCN only if they have several hosts, and this one has a single host; "
            "take larger slices, or --kind RayCluster for several jobs of one slice each"
        )
    name = _checked_name(kind, name or f"torchtpu-{_group_name(slice_)}")
    if namespace is not None and _NAMESPACE.fullmatch(namespace) is None:
        raise RecipeError(
            f"--namespace {namespace}: expected at most 63 lower-case letters, digits and '-' inside, e.g. training"
        )
    cluster = _cluster(slice_, pool, least, image, ray_version)
    metadata = {"name": name, **({"namespace": namespace} if namespace is not None else {})}
    spec = cluster if kind == "RayCluster" else _job(slice_, least, name, recipe, cluster)
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _head_of(kind: str, slice_: Slice) -> list[str]:
    pool = node_pool(slice_)
    nodes = "1 node" if pool.num_nodes == 1 else f"{pool.num_nodes:,} nodes"
    pools = "one node pool" if slice_.num_slices == 1 else f"{slice_.num_slices} node pools, one a slice,"
    each = "" if slice_.num_slices == 1 else " each"
    lines = [
        f"# {slice_} on GKE: {pools} of {nodes}{each}, machine type {pool.machine_type}, topology {pool.topology}.",
        "# Needed in the GKE cluster: KubeRay 1.5 or newer and its TPU webhook (with GKE's Ray add-on both are there).",
    ]
    if kind == "RayCluster":
        lines.append(
            "# To run a job: ray job submit --address http://HEAD:8265 -- torchtpu-launch RECIPE --backend ray"
        )
    return lines


def _job(slice_: Slice, least: int, name: str, recipe: str, cluster: dict[str, Any]) -> dict[str, Any]:
    words = [
        *("torchtpu-launch", recipe, f"slice={slice_}"),
        *(f"run_name={name}", f"output={OUTPUT_PATH}", "checkpoint.resume=auto"),
        *([f"launcher.slices.min={least}"] if least < slice_.num_slices else []),
        *("--backend", "ray"),
    ]
    return {
        "entrypoint": shlex.join(words),
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": True,
        "backoffLimit": 0,
        "rayClusterSpec": cluster,
    }


def _cluster(slice_: Slice, pool: NodePool, least: int, image: str, ray_version: str) -> dict[str, Any]:
    return {
        "rayVersion": ray_version,
        "headGroupSpec": _head_group(slice_, image),
        "workerGroupSpecs": [_worker_group(slice_, pool, least, image)],
    }


def _head_group(slice_: Slice, image: str) -> dict[str, Any]:
    resources = {"cpu": "4", "memory": "16G"}
    container = {
        "name": "ray-head",
        "image": image,
        "env": _env({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **_HEALTH_CHECKS, **_two_devices_a_chip(slice_)}),
        "ports": [
            {"containerPort": 6379, "name": "gcs-server"},
            {"containerPort": 8265, "name": "dashboard"},
        ],
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": _mounts(),
    }
    return {
        "rayStartParams": {"num-cpus": "0"},
        "template": {"spec": {"containers": [container], "volumes": _volumes()}},
    }


def _worker_group(slice_: Slice, pool: NodePool, least: int, image: str) -> dict[str, Any]:
    devices = slice_.generation.devices_per_chip
    resources = {
        "cpu": str(_CPUS_PER_CHIP * pool.chips_per_node),
        "memory": f"{_MEMORY_GB_PER_CHIP * pool.chips_per_node}G",
        "google.com/tpu": str(pool.chips_per_node),
    }
    container = {
        "name": "ray-worker",
        "image": image,
        "env": [
            *_env({"RAY_memory_monitor_refresh_ms": "0", **_two_devices_a_chip(slice_)}),
            *(_control_service() if slice_.generation.name == "v6e" else []),
        ],
        "ports": [
            {"containerPort": SLICE_BUILDER_PORT, "name": "slicebuilder"},
            {"containerPort": MEGASCALE_PORT, "name": "mxla"},
            {"containerPort": _METRICS_PORT, "name": "metrics"},
        ],
        "resources": {"requests": resources, "limits": resources},
        "readinessProbe": {**_probe(), "initialDelaySeconds": 10, "failureThreshold": 10},
        "livenessProbe": {**_probe(), "initialDelaySeconds": 60, "failureThreshold": 12},
        "volumeMounts": _mounts(),
    }
    return {
        "groupName": _group_name(slice_),
        "numOfHosts": pool.num_nodes,
        "replicas": slice_.num_slices,
        "minReplicas": least,
        "maxReplicas": slice_.num_slices,
        "labels": {ray_names.POD_TYPE: ray_names.pod_type(slice_), ray_names.TOPOLOGY: ray_names.topology(slice_)},
        **({"resources": {"TPU": str(devices * pool.chips_per_node)}} if devices > 1 else {}),
        "rayStartParams": {"metrics-export-port": str(_METRICS_PORT), "object-store-memory": "1000000000"},
        "template": {
            "spec": {
                "nodeSelector": {
                    "cloud.google.com/gke-tpu-accelerator": pool.accelerator,
                    "cloud.google.com/gke-tpu-topology": pool.topology,
                },
                "securityContext": {"runAsUser": 0},
                "containers": [container],
                "volumes": _volumes(),
            }
        },
    }


def _env(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _two_devices_a_chip(slice_: Slice) -> dict[str, str]:
    devices = slice_.generation.devices_per_chip
    return {"RAY_TPU_RESOURCE_PER_CHIP": str(devices)} if devices > 1 else {}


def _control_service() -> list[dict[str, Any]]:
    return [
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "VBAR_CONTROL_SERVICE_URL", "value": "$(NODE_IP):8353"},
    ]


def _probe() -> dict[str, Any]:
    return {"httpGet": {"path": "/api/healthz", "port": _AGENT_PORT}, "periodSeconds": 5, "timeoutSeconds": 3}


def _volumes() -> list[dict[str, Any]]:
    return [{"name": "output", "persistentVolumeClaim": {"claimName": OUTPUT_CLAIM}}]


def _mounts() -> list[dict[str, Any]]:
    return [{"name": "output", "mountPath": OUTPUT_PATH}]


def _group_name(slice_: Slice) -> str:
    """The slice's name as a DNS label; Ray calls the slices of the group by it: ``v5p-128-0``, ``v5p-128-1``."""
    return str(Slice(slice_.generation, slice_.topology, twisted=slice_.twisted)).replace(":", "-")


def _checked_name(kind: str, name: str) -> str:
    most = _MOST_CHARACTERS[kind]
    if len(name) > most or _DNS_LABEL.fullmatch(name) is None:
        raise RecipeError(
            f"--name {name}: a {kind} has a name of at most {most} lower-case letters, digits and '-' that begins with "
            "a letter and ends with none of '-', e.g. llama3-8b"
        )
    return name
