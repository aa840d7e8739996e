"""What KubeRay is told: fields that its schema has, the figures of the slice, comments, and mistakes in one line."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cluster.commented_yaml import dump
from launcher.cluster.gke import node_pool
from launcher.cluster.manifest import DEFAULT_RECIPE, OUTPUT_PATH, document, manifest
from launcher.cluster.manifest_reasons import WHY
from torchtpu_dist.errors import RecipeError, SliceError
from torchtpu_dist.mesh import GENERATIONS, Slice
from torchtpu_dist.mesh.topologies import chip_counts, topology_of
from torchtpu_dist.recipe.load import load_recipe

FIELDS = json.loads(Path(__file__).with_name("kuberay_fields.json").read_text(encoding="utf-8"))
KINDS = ("RayJob", "RayCluster")
ON_GKE = ("v4", "v5e", "v5p", "v6e", "tpu7x")
EVERY_SLICE = [
    Slice(generation, topology, twisted=slice_.twisted)
    for name in ON_GKE
    for generation in (GENERATIONS[name],)
    for count in chip_counts(generation)
    if (count <= 512 or count == generation.max_slice_chips) and (topology := topology_of(generation, count))
    for slice_ in (Slice.parse(f"{name}:{'x'.join(map(str, topology))}"),)
]
QUANTITY = re.compile(r"\d+(\.\d+)?([KMGTPE]i|[numkMGTPE])?")


def problems(value: Any, kind: str, where: str) -> Iterator[str]:
    """What is wrong with ``value`` as a ``kind`` of kuberay_fields.json; an unknown field is."""
    if kind.startswith("["):
        if not isinstance(value, list):
            yield f"{where}: expected a list"
        else:
            for number, each in enumerate(value):
                yield from problems(each, kind[1:-1], f"{where}[{number}]")
    elif kind.startswith("{") or kind[0].isupper():
        if not isinstance(value, dict):
            yield f"{where}: expected an object"
            return
        fields = FIELDS.get(kind, {})
        for name, each in value.items():
            expected = kind[1:-1] if kind.startswith("{") else fields.get(name)
            if expected is None or name == "!":
                yield f"{where}.{name}: unknown field"
            else:
                yield from problems(each, expected, f"{where}.{name}")
        yield from (f"{where}.{name}: missing" for name in fields.get("!", ()) if name not in value)
    else:
        fits = {
            "string": isinstance(value, str),
            "integer": isinstance(value, int) and not isinstance(value, bool),
            "boolean": isinstance(value, bool),
            "quantity": isinstance(value, str) and QUANTITY.fullmatch(value) is not None,
            "int-or-string": isinstance(value, (int, str)) and not isinstance(value, bool),
        }
        if not fits[kind]:
            yield f"{where}: {value!r} is no {kind}"


def read(kind: str, slice_: Slice | str, **options: Any) -> dict[str, Any]:
    slice_ = Slice.parse(slice_) if isinstance(slice_, str) else slice_
    return yaml.safe_load(manifest(kind, slice_, **{"ray_version": "2.60.0", **options}))


def cluster_of(manifest_: dict[str, Any]) -> dict[str, Any]:
    spec = manifest_["spec"]
    return spec["rayClusterSpec"] if manifest_["kind"] == "RayJob" else spec


def workers(kind: str, slice_: Slice | str, **options: Any) -> dict[str, Any]:
    (group,) = cluster_of(read(kind, slice_, **options))["workerGroupSpecs"]
    return group


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slice_", EVERY_SLICE, ids=str)
def test_every_slice_has_only_fields_that_kuberay_knows(slice_: Slice, kind: str) -> None:
    found = read(kind, slice_, namespace="training", image="registry/image:1")
    assert list(problems(found, kind, kind)) == []
    group = workers(kind, slice_)
    (container,) = group["template"]["spec"]["containers"]
    chips = int(container["resources"]["requests"]["google.com/tpu"])
    # The rule by which the TPU webhook refuses a cluster.
    topology = group["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    assert group["numOfHosts"] == max(prod(map(int, topology.split("x"))) // chips, 1) == slice_.num_hosts
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert len(group["groupName"]) + len("-99-9999") <= 63


@pytest.mark.parametrize("kind", KINDS)
def test_several_slices(kind: str) -> None:
    several = read(kind, "3*v5p-16")
    shrinks = read(kind, "3*v5p-16", min_slices=1)
    for found in (several, shrinks):
        assert list(problems(found, kind, kind)) == []
    counts = ("replicas", "minReplicas", "maxReplicas")
    assert [workers(kind, "3*v5p-16")[key] for key in counts] == [3, 3, 3]
    assert [workers(kind, "3*v5p-16", min_slices=1)[key] for key in counts] == [3, 1, 3]
    assert read(kind, "3*v5p-16", min_slices=3) == several


def test_the_recipe_takes_what_the_job_says() -> None:
    words = shlex.split(read("RayJob", "2*v5p-16", min_slices=1, name="mine")["spec"]["entrypoint"])
    recipe = load_recipe(words[1], [word for word in words[2:] if "=" in word]).recipe
    assert (recipe.slice, recipe.run_name, recipe.checkpoint.resume) == ("2*v5p-16", "mine", "auto")
    assert (recipe.launcher.slices.min, str(recipe.run_dir)) == (1, f"{OUTPUT_PATH}/mine")


def test_the_validator_finds_what_is_wrong() -> None:
    found = read("RayJob", "v5p-16")
    found["spec"]["backoffLimits"] = 0
    found["spec"]["backoffLimit"] = "0"
    group = found["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    del group["groupName"]
    group["template"]["spec"]["containers"][0]["env"].append({"nmae": "x"})
    group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = 8
    group["rayStartParams"]["num-cpus"] = 1
    said = "\n".join(problems(found, "RayJob", "job"))
    for what in ("backoffLimits: unknown", "'0' is no integer", "groupName: missing", "nmae: unknown", "name: missing"):
        assert what in said
    assert "8 is no quantity" in said
    assert "num-cpus: 1 is no string" in said
    assert list(problems({"headGroupSpec": []}, "RayClusterSpec", "c")) == ["c.headGroupSpec: expected an object"]


@pytest.mark.parametrize(
    ("name", "accelerator", "topology", "hosts", "chips", "pod_type", "machine"),
    [
        ("v4-16", "tpu-v4-podslice", "2x2x2", 2, 4, "v4-16", "ct4p-hightpu-4t"),
        ("v5e-8", "tpu-v5-lite-podslice", "2x4", 1, 8, "v5litepod-8", "ct5lp-hightpu-8t"),
        ("v5e-16", "tpu-v5-lite-podslice", "4x4", 4, 4, "v5litepod-16", "ct5lp-hightpu-4t"),
        ("v5p-128", "tpu-v5p-slice", "4x4x4", 16, 4, "v5p-128", "ct5p-hightpu-4t"),
        ("v6e-1", "tpu-v6e-slice", "1x1", 1, 1, "v6e-1", "ct6e-standard-1t"),
        ("v6e-256", "tpu-v6e-slice", "16x16", 64, 4, "v6e-256", "ct6e-standard-4t"),
        ("tpu7x-16", "tpu7x", "2x2x2", 2, 4, "v7x-16", "tpu7x-standard-4t"),
    ],
)
def test_names_and_numbers(
    name: str, accelerator: str, topology: str, hosts: int, chips: int, pod_type: str, machine: str
) -> None:
    group = workers("RayCluster", name)
    spec = group["template"]["spec"]
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert group["numOfHosts"] == hosts
    assert spec["containers"][0]["resources"]["limits"]["google.com/tpu"] == str(chips)
    assert group["labels"] == {"ray.io/tpu-pod-type": pod_type, "ray.io/tpu-topology": topology}
    assert node_pool(Slice.parse(name)).machine_type == machine
    assert machine in manifest("RayCluster", Slice.parse(name), ray_version="2.60.0").splitlines()[0]


def test_two_devices_a_chip_are_counted_on_every_node() -> None:
    cluster = cluster_of(read("RayJob", "tpu7x-16"))
    (group,) = cluster["workerGroupSpecs"]
    for part in (cluster["headGroupSpec"], group):
        assert env_of(part["template"]["spec"]["containers"][0])["RAY_TPU_RESOURCE_PER_CHIP"] == "2"
    assert group["resources"] == {"TPU": "8"}  # devices; KubeRay would pass the 4 chips on to Ray
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4"
    assert "resources" not in workers("RayJob", "v5p-16")
    assert "RAY_TPU_RESOURCE_PER_CHIP" not in manifest("RayJob", Slice.parse("v5p-16"), ray_version="2.60.0")


def test_the_environment_leaves_to_the_launcher_what_is_the_launchers() -> None:
    for name in ("2*v5p-16", "2*tpu7x-16", "v6e-16"):
        cluster = cluster_of(read("RayJob", name))
        head = env_of(cluster["headGroupSpec"]["template"]["spec"]["containers"][0])
        host = env_of(cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0])
        assert head["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        assert {key for key in head if key.startswith("RAY_health_check")}
        assert not {key for key in host if key.startswith(("MEGASCALE_", "TPU_", "TORCH", "RAY_health_check"))}
        assert ("VBAR_CONTROL_SERVICE_URL" in host) == (name == "v6e-16")
        assert host["RAY_memory_monitor_refresh_ms"] == "0"


def test_head_has_no_tpu_and_both_share_the_output() -> None:
    cluster = cluster_of(read("RayCluster", "v5p-16"))
    head, host = cluster["headGroupSpec"]["template"]["spec"], cluster["workerGroupSpecs"][0]["template"]["spec"]
    assert "google.com/tpu" not in json.dumps(head)
    assert head["volumes"] == host["volumes"]
    assert head["containers"][0]["volumeMounts"] == host["containers"][0]["volumeMounts"]
    ports = {each["name"]: each["containerPort"] for each in host["containers"][0]["ports"]}
    start = cluster["workerGroupSpecs"][0]["rayStartParams"]
    assert ports == {"slicebuilder": 8070, "mxla": 8080, "metrics": int(start["metrics-export-port"])}
    of_ranks = {8070 + device for device in range(8)} | {8080 + device for device in range(16)}
    assert ports["metrics"] not in of_ranks


def test_the_image_is_the_same_everywhere() -> None:
    assert manifest("RayJob", Slice.parse("v5p-16"), image="i:1", ray_version="2.60.0").count("image: i:1\n") == 2


def test_a_job_starts_the_launcher_once() -> None:
    found = read("RayJob", "2*v5p-16", name="mine", namespace="team", recipe="recipes/my run.yaml", image="i:1")
    assert found["metadata"] == {"name": "mine", "namespace": "team"}
    spec = found["spec"]
    assert (spec["backoffLimit"], spec["shutdownAfterJobFinishes"], spec["submissionMode"]) == (0, True, "K8sJobMode")
    words = shlex.split(spec["entrypoint"])
    assert words[:3] == ["torchtpu-launch", "recipes/my run.yaml", "slice=2*v5p-16"]
    assert f"output={OUTPUT_PATH}" in words
    assert "run_name=mine" in words
    assert words[-2:] == ["--backend", "ray"]
    assert "launcher.slices.min=1" in read("RayJob", "2*v5p-16", min_slices=1)["spec"]["entrypoint"]
    assert DEFAULT_RECIPE in read("RayJob", "v5p-16")["spec"]["entrypoint"]
    assert {spec["rayClusterSpec"]["rayVersion"]} == {"2.60.0"}


def test_names_come_from_the_slice() -> None:
    assert read("RayJob", "2*v5p:4x4x16")["metadata"] == {"name": "torchtpu-v5p-4x4x16"}
    assert workers("RayJob", "2*v5p:4x4x16")["groupName"] == "v5p-4x4x16"


def test_every_reason_is_given_somewhere_and_comments_change_nothing() -> None:
    said: set[str] = set()
    for kind in KINDS:
        for name, least in (("2*v5p-16", 1), ("2*tpu7x-16", 1), ("2*v6e-16", 2)):
            plain = document(kind, Slice.parse(name), min_slices=least, ray_version="2.60.0")
            text, used = dump(plain, WHY)
            said |= used
            assert yaml.safe_load(text) == plain
            assert all(len(line.strip()) <= 102 for line in text.splitlines() if line.strip().startswith("#"))
    assert said == set(WHY)


def test_comments_find_the_longest_path_once() -> None:
    data = {"a": {"b": 1, "c": [{"name": "x", "b": "#: no"}, {"name": "y", "b": 3}]}, "b": "# no", "z": {}}
    text, used = dump(data, {"b": "any", "a.b": "first", "c.y": "why y " * 30, "z.z": "never"})
    assert used == {"b", "a.b", "c.y"}
    assert yaml.safe_load(text) == data
    lines = text.splitlines()
    assert lines[:3] == ["a:", "  # first", "  b: 1"]
    assert "  # " + "why y " * 16 + "why" in lines  # 100 characters without its indent
    assert lines[lines.index("  - name: y") - 1].startswith("  # y why")
    assert sum("any" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("kind", "slice_name", "options", "said"),
    [
        ("Job", "v5p-16", {}, "--kind Job: expected RayJob or RayCluster"),
        ("RayJob", "v3-32", {}, "know the TPUs of GKE from v4 on"),
        ("RayCluster", "v2-8", {}, "e.g. v5p-16"),
        ("RayJob", "v5p-256_untwisted", {}, "write v5p-256"),
        ("RayJob", "2*v6e-8", {}, "single host; take larger slices, or --kind RayCluster"),
        ("RayJob", "2*v5p-16", {"min_slices": 3}, "--min-slices 3: expected 1 to 2"),
        ("RayJob", "2*v5p-16", {"min_slices": 0}, "--min-slices 0: expected 1 to 2"),
        ("RayJob", "v5p-16", {"name": "Llama"}, "--name Llama"),
        ("RayJob", "v5p-16", {"name": "a" * 48}, "at most 47"),
        ("RayCluster", "v5p-16", {"name": "a" * 54}, "at most 53"),
        ("RayCluster", "v5p-16", {"name": "a-"}, "--name a-"),
        ("RayCluster", "v5p-16", {"namespace": "my_team"}, "--namespace my_team"),
    ],
)
def test_mistakes_are_one_line(kind: str, slice_name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(said)) as raised:
        read(kind, slice_name, **options)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_single_host_can_be_had_several_times_in_a_cluster() -> None:
    group = workers("RayCluster", "2*v6e-8")
    assert (group["numOfHosts"], group["replicas"]) == (1, 2)


def test_every_shape_of_gke_is_taken_and_no_other() -> None:
    for name in GENERATIONS:
        if name in ON_GKE:
            assert node_pool(Slice.parse(f"{name}-16"))
        else:
            with pytest.raises(SliceError):
                node_pool(Slice.parse(f"{name}-32"))


@pytest.mark.skipif("KUBERAY_CRDS" not in os.environ, reason="KUBERAY_CRDS names no folder with KubeRay's schemas")
@pytest.mark.parametrize("kind", KINDS)
def test_the_noted_fields_are_those_of_the_published_schema(kind: str) -> None:
    path = Path(os.environ["KUBERAY_CRDS"]) / f"ray.io_{kind.lower()}s.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    versions = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)["spec"]["versions"]
    schema = next(each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1")
    assert list(differences(FIELDS[kind]["spec"], schema["properties"]["spec"], kind)) == []


def differences(kind: str, schema: dict[str, Any], where: str) -> Iterator[str]:
    if kind.startswith("["):
        yield from differences(kind[1:-1], schema["items"], where)
    elif kind.startswith("{"):
        yield from differences(kind[1:-1], schema["additionalProperties"], where)
    elif kind[0].isupper():
        fields = {name: each for name, each in FIELDS[kind].items() if name != "!"}
        if sorted(FIELDS[kind].get("!", ())) != sorted(schema.get("required", ())):
            yield f"{where}: requires {schema.get('required')}"
        yield from (f"{where}.{name}: no such field" for name in fields if name not in schema["properties"])
        for name, each in fields.items():
            if name in schema["properties"]:
                yield from differences(each, schema["properties"][name], f"{where}.{name}")
    elif kind in ("quantity", "int-or-string"):
        if not schema.get("x-kubernetes-int-or-string") or ("pattern" in schema) != (kind == "quantity"):
            yield f"{where}: is no {kind}"
    elif schema.get("type") != kind:
        yield f"{where}: is a {schema.get('type')}"
