"""What is checked on every host before ranks are started there: facts from each, and what does not go together."""

import hashlib
import importlib.metadata
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import launcher
import torchtpu_dist
from launcher.cluster.chips import read_chips, tpu_devices
from torchtpu_dist.errors import LaunchError, RecipeError
from torchtpu_dist.mesh.torus import Coordinate

_MOST_CLOCK_SKEW_S = 60.0


@dataclass(frozen=True)
class HostFacts:
    """What one host says about itself.

    Attributes:
        machine: differs between machines, and is the same for all emulated hosts of one.
        hostname: of the machine.
        versions: of Python and the packages that all hosts must have alike.
        clock_s: seconds since the epoch.
        sees_run_dir: whether the run directory is the driver's own: the file that it put there was found.
        can_write: whether files can be written there.
        device_holders: processes that hold TPU devices of this host: ``pid 4711 (python) holds /dev/vfio/0``.
        chips: where its chips are in the slice, in the order of its devices, if they could be read.
        chips_why_not: why they could not, although there are TPUs.
    """

    machine: str
    hostname: str
    versions: Mapping[str, str]
    clock_s: float
    sees_run_dir: bool
    can_write: bool
    device_holders: tuple[str, ...]
    chips: tuple[Coordinate, ...] | None = None
    chips_why_not: str = ""


def look_around(run_dir: str, token: str) -> HostFacts:
    """The facts of the host that this runs on; ``token`` is a file that the driver put into ``run_dir``."""
    folder, devices = Path(run_dir), tpu_devices()
    holders = _device_holders(devices)
    # Chips that somebody holds are refused anyway, and libtpu would wait for them.
    chips, why_not = read_chips() if devices and not holders else (None, "")
    return HostFacts(
        machine=machine_id(),
        hostname=platform.node(),
        versions=_versions(),
        clock_s=time.time(),
        sees_run_dir=(folder / token).exists(),
        can_write=os.access(folder, os.W_OK),
        device_holders=holders,
        chips=chips,
        chips_why_not=why_not,
    )


def machine_id() -> str:
    """The same for all processes that can share memory: those of one boot of one machine that see each other's pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def check(
    facts: Mapping[str, HostFacts], run_dir: Path, own_versions: Mapping[str, str], asked_s: float | None = None
) -> None:
    """Refuse hosts that cannot work together.

    Args:
        facts: by the name of the host.
        run_dir: the run directory as the launcher knows it.
        own_versions: those of the launcher.
        asked_s: when the hosts were asked, in seconds since the epoch; None: just now. They looked at some time since.

    Raises:
        RecipeError: the run directory is not shared, or a version differs: another attempt would end the same way.
        LaunchError: a device is held by another process, or a clock is off: another attempt may do.
    """
    blind = [name for name, host in facts.items() if not host.sees_run_dir]
    if blind:
        raise RecipeError(
            f"output: the run directory {run_dir} of the launcher is not there on {_some(blind)}; "
            "set output to a folder that all hosts share (NFS, Filestore, a mounted bucket)"
        )
    locked = [name for name, host in facts.items() if not host.can_write]
    if locked:
        raise RecipeError(f"output: the run directory {run_dir} cannot be written on {_some(locked)}")
    for package in sorted({*own_versions, *(package for host in facts.values() for package in host.versions)}):
        _check_alike(package, {name: host.versions.get(package) for name, host in facts.items()}, own_versions)
    held = [f"{name}: {holder}" for name, host in facts.items() for holder in host.device_holders]
    if held:
        raise LaunchError(f"TPU devices are in use: {'; '.join(held[:4])}; end these processes")
    now = time.time()
    earliest, latest = (now if asked_s is None else asked_s) - _MOST_CLOCK_SKEW_S, now + _MOST_CLOCK_SKEW_S
    off = [name for name, host in facts.items() if not earliest <= host.clock_s <= latest]
    if off:
        raise LaunchError(
            f"the clock of {_some(off)} differs by more than {_MOST_CLOCK_SKEW_S:g} s from the launcher's"
        )


def _check_alike(package: str, found: Mapping[str, str | None], own_versions: Mapping[str, str]) -> None:
    """Whether all hosts have the version of the launcher, or where it has none itself, all the same."""
    own, where = own_versions.get(package), "where the launcher runs"
    if own is None:
        where, own = next(iter(found.items()))
        where = f"on {where}"
    others = {name: version for name, version in found.items() if version != own}
    if others:
        counted = Counter(version or "none" for version in others.values())
        got = ", ".join(f"{version} on {count} host{'s' if count > 1 else ''}" for version, count in counted.items())
        raise RecipeError(
            f"{package} differs between the hosts: {own or 'none'} {where}, {got} ({_some(list(others))}); "
            "install the same everywhere"
        )


def own_versions() -> Mapping[str, str]:
    """What the other hosts are compared with."""
    return _versions()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "torchtpu-dist", "torch_tpu"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Two checkouts have the same version: what they differ in would be found by ranks that fail in odd ways.
    found["source of torchtpu-dist"] = _source_digest()
    return found


def _source_digest() -> str:
    """A few digits that differ between two versions of our own code."""
    digest = hashlib.sha256()
    for package in (launcher, torchtpu_dist):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root.parent)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _device_holders(devices: Sequence[str]) -> tuple[str, ...]:
    """Who holds a TPU of this machine, of the processes that we may look at."""
    if not devices:
        return ()
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(descriptor)
            if target in devices:
                pid = descriptor.parts[2]
                command = Path("/proc", pid, "comm").read_text().strip()
                found.append(f"pid {pid} ({command}) holds {target}")
        except OSError:
            continue  # it ended, or is somebody else's
    return tuple(sorted(found))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"host {shown}" if len(names) == 1 else f"hosts {shown}"
