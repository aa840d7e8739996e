"""The comments of a manifest: why a field has the value it has, by the end of its path (:func:`dump`)."""

from collections.abc import Mapping
from types import MappingProxyType

WHY: Mapping[str, str] = MappingProxyType(
    {
        "entrypoint": (
            "The recipe is a name from the package or a path in the image. The slice is said here so that job and "
            "cluster cannot differ; applied again after a lost head, the run goes on from its newest checkpoint."
        ),
        "submissionMode": "A small pod submits the job and shows its lines: kubectl logs -f job/NAME.",
        "shutdownAfterJobFinishes": "TPUs cost while they wait: the cluster goes when the job ends.",
        "backoffLimit": (
            "No retries here: the launcher restarts by itself and keeps intact slices, while KubeRay would make a "
            "new cluster for each retry and begin with a user's mistake again."
        ),
        "rayVersion": "Must be the version in the image; KubeRay chooses its health checks by it.",
        "headGroupSpec": "The launcher runs here, on an ordinary node: it has no TPU and starts no ranks.",
        "headGroupSpec.rayStartParams.num-cpus": "Keeps everything but the launcher off the head.",
        "containers.image": "Set it: an image with torchtpu-dist, torch_tpu and Ray, the same for head and workers.",
        "env.TORCH_DEVICE_BACKEND_AUTOLOAD": (
            "Without a TPU, torch_tpu only costs start-up time here. Workers do not set it: ranks need torch_tpu."
        ),
        "env.RAY_health_check_period_ms": (
            "A host that died is noticed in 5 s and one that froze in 20 s (15 s and 65 s by default)."
        ),
        "env.RAY_TPU_RESOURCE_PER_CHIP": "A chip is two devices: every node of the cluster has to count them alike.",
        "workerGroupSpecs": "A replica is a whole slice, a pod is one of its hosts.",
        "numOfHosts": "Chips of the topology by chips a host; the TPU webhook refuses anything else.",
        "replicas": (
            "Counts slices, not hosts. KubeRay makes a lost one anew; a RayJob begins when all hosts are ready."
        ),
        "labels": (
            "Ray finds these on running hosts by itself. Its autoscaler, should you switch that on, knows of a slice "
            "that does not exist yet only what is written here."
        ),
        "metrics-export-port": "KubeRay's choice, 8080, is where a rank talks to other slices.",
        "workerGroupSpecs.resources": "Devices. Left out, KubeRay would give Ray the number of chips.",
        "object-store-memory": "1 GB: no arrays go through Ray, the memory is for the ranks.",
        "securityContext": (
            "Root owns the TPU's device files. Nodes older than GKE 1.28 also need privileged: true in the container's "
            "securityContext."
        ),
        "env.RAY_memory_monitor_refresh_ms": (
            "Short of memory, Ray would kill the host's agent and with it all ranks of the host. MEGASCALE_*, TPU_* "
            "and TORCH_TPU_* are left out on purpose: the webhook and the launcher set them, for the slices there are."
        ),
        "env.NODE_IP": "As in KubeRay's samples for v6e: where libtpu finds the control service of its node.",
        "workerGroupSpecs.template.spec.containers.ports": (
            "For the reader: pods reach each other on any port. Device i of a host builds its slice on 8070 + i and "
            "talks to other slices (DCN) on 8080 + 2i."
        ),
        "workerGroupSpecs.template.spec.containers.resources": (
            "google.com/tpu: all chips of the host, requests = limits. CPU and memory are what every machine of this "
            "kind has to spare; raise them to yours."
        ),
        "readinessProbe": "As KubeRay's own: the host's Ray process answers.",
        "livenessProbe": (
            "KubeRay's own waits for ten minutes. After one, a frozen host is started anew in its place and the slice "
            "is whole again."
        ),
        "headGroupSpec.template.spec.volumes": (
            "Set it: a claim that all pods can write at once (ReadWriteMany), Filestore or a bucket by the Cloud "
            "Storage FUSE driver. Checkpoints and logs go there; without it a lost head loses them."
        ),
    }
)
