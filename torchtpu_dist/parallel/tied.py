"""Parameters that are one tensor under two names, kept so while a model is rewritten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def kept_tied(model: nn.Module) -> Iterator[None]:
    """Whatever replaces parameters inside, names that shared one parameter share one again afterwards.

    Distributing a module and ``to_empty`` give each module a parameter of its own, which unties silently: the two
    would start different and be trained apart.
    """
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    yield
    for first, *others in aliases.values():
        for other in others:
            path, _, attribute = other.rpartition(".")
            setattr(model.get_submodule(path), attribute, model.get_parameter(first))
