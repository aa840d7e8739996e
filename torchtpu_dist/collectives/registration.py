"""The backend ``ici`` is made known to torch.distributed, without loading torch for it."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_TORCH = "torch.distributed"
_BACKEND = "ici"


def register_once_torch_is_there() -> None:
    """Register now if torch.distributed has been imported, else as soon as it is."""
    module = sys.modules.get(_TORCH)
    if module is not None and hasattr(module, "Backend"):
        _register(module)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def _register(distributed: ModuleType) -> None:
    # A torch built without distributed has no Backend; init_process_group then says so itself.
    backend = getattr(distributed, "Backend", None)
    if backend is not None and _BACKEND not in backend.backend_list:
        backend.register_backend(_BACKEND, _create, extended_api=True, devices=["cpu"])


def _create(*arguments: Any) -> Any:
    from torchtpu_dist.collectives.emulator import process_group

    return process_group.create(*arguments)


class _Watch(importlib.abc.MetaPathFinder):
    """Stands in ``sys.meta_path`` until torch.distributed is looked for, and sees to it that we hear when it is there.

    The import itself is left to the finders that would have done it.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TORCH:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(importlib.abc.Loader):
    """``loader``, followed by the registration."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
