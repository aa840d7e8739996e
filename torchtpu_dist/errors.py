"""Every error this package raises on purpose.

::

    TorchTpuError
    ├── RecipeError            the recipe or the command line is wrong            exit code 2
    │   ├── SliceError         no such TPU slice
    │   └── AssignmentError    the mesh does not fit on the slice's torus
    ├── ScheduleError          a collective schedule is not what it claims to be   (a bug in us)
    ├── CollectiveError        a collective call cannot run                        exit code 3
    │   ├── ContractError      this rank's arguments are wrong (contiguity, shape, dtype, splits)
    │   ├── MismatchError      the ranks of a group did not issue the same call
    │   ├── PeerLostError      a rank of the group has died
    │   └── CollectiveTimeout  a rank of the group did not arrive in time
    ├── CheckpointError        a checkpoint is missing, damaged or of another model
    ├── TrainingError          the training itself failed (a loss that is not a number, ...)
    ├── LaunchError            processes could not be started or supervised        exit code 4
    └── StopRequested          a signal asked to stop; a checkpoint was written    exit code 5

A message says what happened, what was got, what was expected and what to do, in that order, with the
user's own recipe key and the rank where there is one.
"""


class TorchTpuError(Exception):
    """Base of the tree. ``exit_code`` is what the command line returns for it."""

    exit_code = 3


class RecipeError(TorchTpuError):
    """The recipe or the command line is wrong; found before any process starts."""

    exit_code = 2


class SliceError(RecipeError):
    """The name is not a TPU slice."""


class AssignmentError(RecipeError):
    """The logical mesh axes cannot be laid on the slice's torus."""


class ScheduleError(TorchTpuError):
    """A schedule failed its proof."""


class CollectiveError(TorchTpuError):
    """A collective call could not run."""


class ContractError(CollectiveError, ValueError):
    """This rank's own arguments break the contract of the collective."""


class MismatchError(CollectiveError, RuntimeError):
    """The ranks of a group issued different calls."""


class PeerLostError(CollectiveError, RuntimeError):
    """A rank of the group has died. Always a consequence: the dead rank's own failure is the cause."""


class CollectiveTimeout(CollectiveError, RuntimeError):
    """A rank of the group did not arrive within the timeout."""


class CheckpointError(TorchTpuError):
    """A checkpoint is missing, damaged, or does not fit the model."""


class TrainingError(TorchTpuError):
    """Training cannot go on."""


class LaunchError(TorchTpuError):
    """Processes could not be started or supervised."""

    exit_code = 4


class StopRequested(TorchTpuError):
    """A signal asked the run to stop; a checkpoint was written first."""

    exit_code = 5
