"""The backend ``ici`` is made known to torch.distributed, without loading torch for it.

Not by an entry point of the installed package: that would load this package in every program that imports torch.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_DEFINES_BACKEND = "torch.distributed.distributed_c10d"
"""The module that ``torch.distributed.Backend`` comes from; torch.distributed imports it where it is available."""

_NAME = "ici"


def register_once_torch_is_there() -> None:
    """Register now if torch.distributed has been imported, else as soon as it is, and again should it be replaced."""
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())
    if sys.modules.get(_DEFINES_BACKEND) is not None:
        # Another thread may be importing it since before we watched: this waits for it, and loads nothing.
        _register(importlib.import_module(_DEFINES_BACKEND))


def _register(distributed: ModuleType) -> None:
    backend = distributed.Backend
    if _NAME not in backend.backend_list:
        backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])


def _create(*arguments: Any) -> Any:
    from torchtpu_dist.collectives.emulator import process_group

    return process_group.create(*arguments)


class _Watch(importlib.abc.MetaPathFinder):
    """Stands in ``sys.meta_path`` and sees to it that we hear when the module has been loaded.

    It stays there: who looks for the module need not load it, and a failed import may be tried again.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the finders behind this one find, with a loader that registers; None for any other module."""
        if fullname != _DEFINES_BACKEND:
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenRegister(spec.loader)
                return spec
        return None


class _ThenRegister(importlib.abc.Loader):
    """``loader``, followed by the registration. The module itself is left with ``loader`` as its own."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name: str) -> Any:
        # For who only asks for the spec, and wants its source or its resources.
        if name == "_loader":  # not there yet while a copy is made
            raise AttributeError(name)
        return getattr(self._loader, name)
