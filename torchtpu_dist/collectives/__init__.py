"""Collectives over the torus: schedules as data, their proof and cost, and the ``ici`` backend that runs them.

Importing this package registers the c10d backend ``ici`` for CPU tensors::

    import torch.distributed as dist
    import torchtpu_dist.collectives

    dist.init_process_group("ici")

Schedules, proofs and prices need no torch, and planning should not wait for it: the import does not load torch, and the
backend is registered once torch.distributed is there, now or later.
"""

from torchtpu_dist.collectives.registration import register_once_torch_is_there

register_once_torch_is_there()
