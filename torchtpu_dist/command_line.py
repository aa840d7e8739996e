"""How every command line of this package ends: with an exit code, and for a mistake with one line that says it."""

import importlib.metadata
import sys
import traceback
from typing import NoReturn

import typer

from torchtpu_dist.errors import RecipeError, TorchTpuError

_UNEXPECTED = 3
_USAGE = 2
_INTERRUPTED = 130
# Typer has its own click or the real one, depending on its version; this is the base of either's usage errors.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run_and_exit(app: typer.Typer) -> NoReturn:
    """Run ``app`` on ``sys.argv`` and end the process with what its command returns.

    An error of ours is one line and its own exit code, wrong arguments are one line and 2, Ctrl-C is 130 and silent;
    anything else is a bug: its traceback, and 3.
    """
    try:
        sys.exit(app(standalone_mode=False))
    except RecipeError as error:  # several mistakes are several lines
        _complain(str(error), error.exit_code, each_line=True)
    except TorchTpuError as error:
        _complain(str(error), error.exit_code)
    except _UsageError as error:
        _complain(error.format_message(), _USAGE)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_INTERRUPTED)
    except Exception:
        traceback.print_exc()
        sys.exit(_UNEXPECTED)


def print_version(wanted: bool) -> None:
    """Callback of a ``--version`` option."""
    if wanted:
        typer.echo(f"torchtpu-dist {importlib.metadata.version('torchtpu-dist')}")
        raise typer.Exit


def _complain(message: str, exit_code: int, each_line: bool = False) -> NoReturn:
    for number, line in enumerate(message.splitlines()):
        typer.echo(f"error: {line}" if number == 0 or each_line else line, err=True)
    sys.exit(exit_code)
