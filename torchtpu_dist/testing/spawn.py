"""Run a function in several ranks, from a test: ``run_ranks(check_all_reduce, 4, torch.float32)``.

The ranks are forked from one process that has imported torch, so that a call costs a fraction of a second. They run
under the supervisor that real jobs run under; every process is gone when the call returns, however it returns.
"""

import atexit
import functools
import importlib.util
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from launcher.failure import EXITED, RankFailure
from launcher.fork_client import ForkServerClient
from launcher.job import DEFAULT_PRELOAD, Job, JobResult
from launcher.supervise import supervise
from torchtpu_dist.errors import LaunchError

_PRELOAD = ("torchtpu_dist.testing.spawn", *DEFAULT_PRELOAD)
_START_TIMEOUT_S = 60.0


class RanksFailed(AssertionError):
    """At least one rank failed. The text begins with the rank that failed first and has its traceback.

    Attributes:
        failures: how each failed rank failed, by global rank.
        exit_codes: exit status by rank; minus the signal's number when killed.
        first: the failure that is not a consequence of another.
    """

    def __init__(self, result: JobResult) -> None:
        self.first = result.failures[0]
        self.failures: dict[int, RankFailure] = {each.rank: each for each in result.failures}
        self.exit_codes = result.exit_codes
        others = [each.headline for each in result.failures[1:] if each.type != EXITED]
        silent = len(result.failures) - 1 - len(others)
        if silent:
            others.append(f"{silent} other ranks ended without a word")
        super().__init__("\n".join([self.first.headline, self.first.traceback.rstrip(), *others]))


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    backend: str = "ici",
    slice_name: str | None = None,
    coordinates: Sequence[Sequence[int]] | None = None,
    timeout_s: float = 60.0,
    collective_timeout_s: float | None = None,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Call ``function(*args)`` in ``world_size`` processes with ``torch.distributed`` initialised.

    Args:
        function: defined at the top level of a module; the ranks load that module from its file.
        world_size: number of ranks.
        args: picklable arguments, the same for every rank.
        backend: process-group backend, ``ici`` or ``gloo``.
        slice_name: slice to emulate, such as ``v5e-8``.
        coordinates: device coordinate of every rank on that slice.
        timeout_s: limit of the whole call, from the moment the ranks are forked.
        collective_timeout_s: limit of one collective, None: as long as the call itself.
        environment: extra environment variables of the ranks.

    Returns:
        What the function returned, by rank (picklable; tensors must be on the CPU and plain).

    Raises:
        RanksFailed: a rank raised, exited, was killed, or was still running when the time was up.
    """
    with tempfile.TemporaryDirectory(prefix="torchtpu-ranks-") as folder:
        run_dir = Path(folder)
        (run_dir / "logs").mkdir()
        (run_dir / "call.pickle").write_bytes(pickle.dumps(args))
        job = Job(
            entry=f"{__name__}:call_in_rank",
            arguments={"folder": folder, **_address_of(function)},
            world_size=world_size,
            run_dir=run_dir,
            backend=backend,
            environment=environment or {},
            slice_name=slice_name,
            coordinates=None if coordinates is None else tuple(tuple(each) for each in coordinates),
            preload=_PRELOAD,
            init_timeout_s=timeout_s,
            collective_timeout_s=timeout_s if collective_timeout_s is None else collective_timeout_s,
            start_timeout_s=_START_TIMEOUT_S + timeout_s,
            run_timeout_s=timeout_s,
        )
        result = _run(job)
        if result.failures:
            raise RanksFailed(result)
        return [_load_result(run_dir, rank) for rank in range(world_size)]


def close_server() -> None:
    """End the process that ranks are forked from, and every rank it still has. The next call starts another."""
    with _LOCK:
        if _server.cache_info().currsize:
            _server().close()
            _server.cache_clear()


def call_in_rank(arguments: dict[str, Any]) -> None:
    """What a rank runs: load the function, call it, keep what it returns."""
    import os

    folder = Path(arguments["folder"])
    function = _load_function(arguments["module"], arguments["file"], arguments["name"])
    result = function(*pickle.loads((folder / "call.pickle").read_bytes()))
    (folder / f"result-{os.environ['RANK']}.pickle").write_bytes(pickle.dumps(result))


_LOCK = threading.Lock()


@functools.cache
def _server() -> ForkServerClient:
    atexit.register(close_server)
    return ForkServerClient(_PRELOAD)


def _run(job: Job) -> JobResult:
    with _LOCK:
        server = _server()
        try:
            server.start(job)
            return supervise(server, job)
        except BaseException:
            # Ctrl-C, or a server that is no more: end everything, so that nothing outlives the test.
            server.close()
            _server.cache_clear()
            raise


def _address_of(function: Callable[..., Any]) -> dict[str, str]:
    name, module = function.__qualname__, sys.modules[function.__module__]
    if "." in name or module.__file__ is None:
        raise LaunchError(
            f"{function.__module__}.{name} cannot be run in other processes: "
            "expected a function defined at the top level of a module file"
        )
    return {"module": function.__module__, "file": str(Path(module.__file__).resolve()), "name": name}


def _load_function(module_name: str, file: str, name: str) -> Callable[..., Any]:
    """By path: a test module is not importable by its name, and may have the name of another."""
    # A script is loaded under another name, as multiprocessing does, so that its `if __name__ == "__main__"` part,
    # which called us, does not run again; pickle still finds its classes in `__main__`.
    loaded_as = "__mp_main__" if module_name == "__main__" else module_name
    module = sys.modules.get(loaded_as)
    if module is None or module.__file__ != file:
        spec = importlib.util.spec_from_file_location(loaded_as, file)
        if spec is None or spec.loader is None:
            raise LaunchError(f"{file} cannot be loaded as a Python module")
        module = importlib.util.module_from_spec(spec)
        # Before it runs: dataclasses and pickle look their module up by name.
        sys.modules[loaded_as] = sys.modules[module_name] = module
        _load_packages_above(loaded_as)
        spec.loader.exec_module(module)
    return getattr(module, name)


def _load_packages_above(module_name: str) -> None:
    """pickle imports a module by its name, and so the packages above it; those of a test module may be mere folders."""
    parts = module_name.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            sys.modules[package] = ModuleType(package)


def _load_result(run_dir: Path, rank: int) -> Any:
    return pickle.loads((run_dir / f"result-{rank}.pickle").read_bytes())
