"""A plain model, sharded from outside: the story is in :mod:`torchtpu_dist.parallel.apply`."""
