"""How every command line of this package ends: with an exit code, and for a mistake with one line that says it."""

import errno
import importlib.metadata
import os
import sys
import traceback
from typing import NoReturn

import typer

from torchtpu_dist.errors import LaunchError, RecipeError, TorchTpuError

_UNEXPECTED = 3
_USAGE = 2
_INTERRUPTED = 130
_NOBODY_READS = 1  # as Typer ends where it finds this first
# Typer has its own click or the real one, depending on its version; this is the base of either's usage errors.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run_and_exit(app: typer.Typer) -> NoReturn:
    """Run ``app`` on ``sys.argv`` and end the process with what its command returns.

    An error of ours is one line and its own exit code, wrong arguments are one line and 2, Ctrl-C is 130 and silent;
    an output that is full is one line and 4, one that nobody reads any more (``| head -1``) is 1 and silent;
    anything else is a bug: its traceback, and 3.
    """
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is found here and not after the end
        sys.exit(code)
    except BrokenPipeError:
        _drop_output()
        sys.exit(_NOBODY_READS)
    except RecipeError as error:  # several mistakes are several lines
        _complain(str(error), error.exit_code, each_line=True)
    except TorchTpuError as error:
        _complain(str(error), error.exit_code)
    except _UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":  # no words at all: its message is the help, not a complaint
            typer.echo(message, err=True)
            sys.exit(_USAGE)
        _complain(message + _example(message), _USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_INTERRUPTED)
    except OSError as error:
        # A full disk is no bug; any other error of the system is one, for commands say what is wrong with a file.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            traceback.print_exc()
            sys.exit(_UNEXPECTED)
        _drop_output()
        _complain(f"the output cannot be written: {error.strerror}", LaunchError.exit_code)
    except Exception:
        traceback.print_exc()
        sys.exit(_UNEXPECTED)


def print_version(wanted: bool) -> None:
    """Callback of a ``--version`` option."""
    if wanted:
        typer.echo(f"torchtpu-dist {importlib.metadata.version('torchtpu-dist')}")
        raise typer.Exit


def _drop_output() -> None:
    """Let the interpreter not try again, at its end, to write what is left over."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _example(message: str) -> str:
    """What to give where the op of a collective is missing."""
    if "'OP'" not in message:
        return ""
    return (
        " Expected all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or reduce, "
        "e.g. torchtpu collective all_gather --slice v5p-128 --bytes 64MiB"
    )


def _complain(message: str, exit_code: int, each_line: bool = False) -> NoReturn:
    for number, line in enumerate(message.splitlines()):
        typer.echo(f"error: {line}" if number == 0 or each_line else line, err=True)
    sys.exit(exit_code)
