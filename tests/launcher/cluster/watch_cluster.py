"""``python watch_cluster.py ADDRESS``: looks at a Ray cluster and drains its nodes, on command: one JSON line each.

It is a process of its own because Ray reads its settings once: those of the tests' process are not the cluster's.
"""

import importlib
import json
import sys
import time
from typing import Any

from launcher.cluster.look import _head, look, release

_PREEMPTION = 2
address = sys.argv[1]


def answer(command: str, arguments: dict[str, Any]) -> Any:
    """What ``command`` gives."""
    match command:
        case "look":
            return {each.name: [each.state, each.why] for each in look(address)}
        case "groups":
            with _head(address) as head:
                groups = head.state.placement_group_table().values()
                return [group["placement_group_id"] for group in groups if group["state"] != "REMOVED"]
        case "release":
            return release(arguments["name"], address)
        case "drain":
            gcs = importlib.import_module("ray._raylet").GcsClient(address=address)
            deadline_ms = int(1000 * (time.time() + arguments["seconds"]))
            return gcs.drain_node(arguments["node_id"], _PREEMPTION, "maintenance", deadline_ms)[0]
    raise ValueError(command)


for line in sys.stdin:
    asked = json.loads(line)
    sys.stdout.write(json.dumps(answer(asked.pop("command"), asked)) + "\n")
    sys.stdout.flush()
