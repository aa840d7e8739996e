"""What an attempt died of: one class for each ending, from what the ranks, the hosts and the launcher saw."""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from launcher.failure import EXITED, RankFailure
from torchtpu_dist.errors import CheckpointError, CollectiveTimeout, LaunchError, PeerLostError, RecipeError


class FailureClass(StrEnum):
    """Why an attempt ended, as far as it matters for what is done next."""

    PREEMPTION = "preemption"
    INFRASTRUCTURE = "infrastructure"
    HANG = "hang"
    USER_ERROR = "user_error"
    CONFIGURATION = "configuration"
    NO_CAPACITY = "no_capacity"

    @property
    def words(self) -> str:
        """The class as it is written in a sentence."""
        return self.value.replace("_", " ")


@dataclass(frozen=True)
class Ending:
    """What is known when an attempt is over.

    Attributes:
        failure: the first rank's failure that is not a consequence of another, or the first one if all are.
        lost_hosts: hosts that died, as ``slice/worker`` (``emu-0/1``).
        drained_hosts: hosts that had been told to go, by a drain notice or by a signal to Ray's process there.
        hung: the attempt was ended because no step came.
        first_step_done: all ranks have finished a step in this attempt.
        step: the last step that all ranks have finished, the resumed step if there is none.
        failed_host: the host of the rank of ``failure``, None if it is not known.
    """

    failure: RankFailure | None = None
    lost_hosts: tuple[str, ...] = ()
    drained_hosts: tuple[str, ...] = ()
    hung: bool = False
    first_step_done: bool = False
    step: int = 0
    failed_host: str | None = None

    @property
    def lost_without_notice(self) -> tuple[str, ...]:
        """Lost hosts of slices that had no notice: one host may get it, but a slice goes as a whole."""
        told = {slice_of(host) for host in self.drained_hosts}
        return tuple(host for host in self.lost_hosts if slice_of(host) not in told)


@dataclass(frozen=True)
class Verdict:
    """The class of an ending, and the evidence in one line."""

    failure_class: FailureClass
    reason: str


_NAMES_OF_CONFIGURATION = frozenset(
    error.__name__
    for error in (
        *(ImportError, ModuleNotFoundError, FileNotFoundError, SyntaxError, IndentationError, TabError),
        CheckpointError,
    )
)
_NAMES_OF_LOST_CONTACT = frozenset(
    {CollectiveTimeout.__name__, PeerLostError.__name__, "DistStoreError", "DistNetworkError"}
)
_LOST_CONTACT = re.compile(r"connectFullMesh|rendezvous|connect.*tim(ed |e)out|tim(ed |e)out.*connect", re.I | re.S)
_DEVICE_BUSY = re.compile(r"/dev/(vfio|accel).*Device or resource busy|Device or resource busy.*/dev/(vfio|accel)")
_OUT_OF_MEMORY = re.compile(r"(?<![a-z])oom|out of memory", re.I)
_FROM_OUTSIDE = frozenset({-signal.SIGKILL, -signal.SIGBUS, -signal.SIGTERM})


def classify(ending: Ending) -> Verdict:
    """What an attempt that did not succeed ended with."""
    if ending.lost_hosts:
        if unannounced := ending.lost_without_notice:
            return Verdict(FailureClass.INFRASTRUCTURE, f"lost {_hosts(unannounced)} without notice")
        return Verdict(FailureClass.PREEMPTION, f"lost {_hosts(ending.lost_hosts)} after notice")
    if ending.hung:
        return Verdict(FailureClass.HANG, "no step within the limit")
    own = None if ending.failure is None else _classify_rank(ending.failure, ending.first_step_done)
    if ending.drained_hosts and (own is None or own.failure_class is FailureClass.INFRASTRUCTURE):
        return Verdict(FailureClass.PREEMPTION, f"drain notice for {_hosts(ending.drained_hosts)}")
    # Ranks that end without a failure were stopped by a signal that nobody here sent: a host on its way down.
    return own or Verdict(FailureClass.INFRASTRUCTURE, "ranks were stopped by a signal from outside")


def _classify_rank(failure: RankFailure, first_step_done: bool) -> Verdict:
    headline, exited = failure.headline, failure.type == EXITED
    if exited and failure.exit_code == -signal.SIGKILL and _OUT_OF_MEMORY.search(failure.message):
        return Verdict(FailureClass.USER_ERROR, f"the host of rank {failure.rank} ran out of memory: {headline}")
    if exited and failure.exit_code in _FROM_OUTSIDE:
        return Verdict(FailureClass.INFRASTRUCTURE, headline)
    if is_of_the_surroundings(failure, first_step_done):
        return Verdict(FailureClass.INFRASTRUCTURE, headline)
    wrong = failure.type in _NAMES_OF_CONFIGURATION or is_recipe_error(failure)
    return Verdict(
        FailureClass.CONFIGURATION if wrong and not first_step_done else FailureClass.USER_ERROR,
        headline,
    )


def is_of_the_surroundings(failure: RankFailure, first_step_done: bool) -> bool:
    """Whether the failure says by itself that devices, network or launcher are to blame, not the rank's program."""
    return (
        _DEVICE_BUSY.search(failure.message + failure.traceback) is not None
        or has_lost_contact(failure, first_step_done)
        or (failure.type != EXITED and failure.job_exit_code == LaunchError.exit_code)
    )


def has_lost_contact(failure: RankFailure, first_step_done: bool) -> bool:
    """Whether the failure is of another rank or of the network: this rank is only the witness."""
    if failure.secondary or failure.type in _NAMES_OF_LOST_CONTACT:
        return True
    return not first_step_done and failure.type == "RuntimeError" and bool(_LOST_CONTACT.search(failure.message))


def is_recipe_error(failure: RankFailure) -> bool:
    """Whether the rank found a mistake in the recipe."""
    return failure.type != EXITED and failure.exit_code == RecipeError.exit_code


def slice_of(host: str) -> str:
    """The slice of the host ``slice/worker``."""
    return host.rpartition("/")[0]


def _hosts(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"host {shown}" if len(names) == 1 else f"hosts {shown}"
