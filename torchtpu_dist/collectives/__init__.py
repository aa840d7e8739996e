"""Collectives over the torus: schedules as data, their proof and cost, and the ``ici`` backend that runs them.

Importing this package registers the c10d backend ``ici`` for CPU tensors::

    import torch.distributed as dist
    import torchtpu_dist.collectives

    dist.init_process_group("ici")
"""

import torch.distributed as dist

from torchtpu_dist.collectives.emulator import process_group

if "ici" not in dist.Backend.backend_list:
    dist.Backend.register_backend("ici", process_group.create, extended_api=True, devices=["cpu"])
