"""The backend ``ici`` is known wherever torch.distributed is, in whichever order they come, and costs no torch.

Each case is a process of its own. Odd cases see a small torch that takes no time: a folder of that name.
"""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from launcher.job import DEFAULT_PRELOAD

ROOT = Path(__file__).parent.parent.parent
C10D = """
class Backend:
    backend_list = []

    @classmethod
    def register_backend(cls, name, create, extended_api, devices):
        cls.backend_list.append(name)
"""


def run(code: str, *paths: Path) -> None:
    search = f"import sys; sys.path[:0] = {list(map(str, (*paths, ROOT)))}\n"
    result = subprocess.run([sys.executable, "-c", search + dedent(code)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def small_torch(tmp_path: Path) -> Path:
    folder = tmp_path / "torch" / "distributed"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text("from torch.distributed.distributed_c10d import *\n")
    (folder / "distributed_c10d.py").write_text(C10D)
    return folder


def test_torch_first() -> None:
    run(
        """
        import torch.distributed as dist
        assert "ici" not in dist.Backend.backend_list
        import torchtpu_dist.collectives
        assert "ici" in dist.Backend.backend_list and dist.get_default_backend_for_device("cpu") != "ici"
        assert "torchtpu_dist.collectives.emulator" not in sys.modules
        """
    )


def test_collectives_first() -> None:
    run(
        """
        import torchtpu_dist.collectives, torchtpu_dist.collectives.verify, torchtpu_dist.collectives.algorithms
        assert "torch" not in sys.modules and "torchtpu_dist.collectives.emulator" not in sys.modules
        import torch.distributed as dist
        assert "ici" in dist.Backend.backend_list
        store = dist.HashStore()
        dist.init_process_group("ici", store=store, rank=0, world_size=1)
        assert dist.get_backend() == "ici"
        dist.destroy_process_group()
        """
    )


def test_to_be_looked_for_is_not_to_be_imported(small_torch: Path) -> None:
    run(
        """
        import copy, importlib.machinery, importlib.util, torchtpu_dist.collectives
        name = "torch.distributed.distributed_c10d"
        import torch
        sys.modules["torch.distributed"] = type(sys)("torch.distributed")
        sys.modules["torch.distributed"].__path__ = [torch.__path__[0] + "/distributed"]
        spec = importlib.util.find_spec(name)
        assert "class Backend" in copy.copy(spec).loader.get_source(name)
        del sys.modules["torch.distributed"]
        import torch.distributed
        assert torch.distributed.Backend.backend_list == ["ici"]
        module = sys.modules[name]  # and its loader is the one that it would have had without us
        assert type(module.__loader__) is type(module.__spec__.loader) is importlib.machinery.SourceFileLoader
        """,
        small_torch.parent.parent,
    )


def test_an_import_that_failed_and_one_done_again(small_torch: Path) -> None:
    (small_torch / "distributed_c10d.py").write_text(f"import __main__\n__main__.ready or 1 / 0\n{C10D}")
    run(
        """
        import importlib, torchtpu_dist.collectives
        ready = False
        try:
            import torch.distributed
        except ZeroDivisionError:
            ready = True
        import torch.distributed
        first = torch.distributed.Backend
        assert first.backend_list == ["ici"]
        importlib.reload(torch.distributed.distributed_c10d)
        importlib.reload(torch.distributed)
        assert torch.distributed.Backend is not first
        assert torch.distributed.Backend.backend_list == ["ici"]
        importlib.reload(torchtpu_dist.collectives)
        importlib.reload(torchtpu_dist.collectives.registration).register_once_torch_is_there()
        assert torch.distributed.Backend.backend_list == ["ici"]
        for name in [name for name in sys.modules if name.startswith("torch.")]:
            del sys.modules[name]
        import torch.distributed as again
        assert again.Backend is not first
        assert again.Backend.backend_list == ["ici"]
        """,
        small_torch.parent.parent,
    )


def test_an_import_under_way_in_another_thread(small_torch: Path) -> None:
    body = f"import __main__\n__main__.under_way.set()\nassert __main__.go_on.wait(60)\n{C10D}"
    (small_torch / "distributed_c10d.py").write_text(body)
    run(
        """
        import importlib, threading
        under_way, go_on = threading.Event(), threading.Event()
        theirs = threading.Thread(target=importlib.import_module, args=["torch.distributed"])
        theirs.start()
        assert under_way.wait(60)
        finders = len(sys.meta_path)
        ours = threading.Thread(target=importlib.import_module, args=["torchtpu_dist.collectives"])
        ours.start()
        while len(sys.meta_path) == finders:
            assert ours.is_alive()
        go_on.set()
        theirs.join()
        ours.join()
        import torch.distributed
        assert torch.distributed.Backend.backend_list == ["ici"]
        """,
        small_torch.parent.parent,
    )


def test_no_torch_and_a_torch_without_distributed(small_torch: Path) -> None:
    (small_torch / "__init__.py").write_text("def is_available():\n    return False\n")
    (small_torch / "distributed_c10d.py").unlink()
    run(
        """
        import torchtpu_dist.collectives
        sys.modules["torch"] = None
        try:
            import torch.distributed
        except ImportError:
            del sys.modules["torch"]
        import torch.distributed
        assert not torch.distributed.is_available()
        """,
        small_torch.parent.parent,
    )


def test_ranks_are_forked_from_a_process_that_has_the_emulator() -> None:
    assert "torchtpu_dist.collectives.emulator.process_group" in DEFAULT_PRELOAD
