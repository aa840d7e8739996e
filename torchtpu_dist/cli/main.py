"""``torchtpu``: the command line for what is known on paper, without a job.

A command is a function in a file of its own. These files are imported at every start: what is slow to import (numpy,
the libraries that draw) they import inside of functions.
"""

from typing import Annotated

import typer

from torchtpu_dist.cli import cluster
from torchtpu_dist.cli.collective import collective
from torchtpu_dist.cli.topology import topology
from torchtpu_dist.command_line import print_version, run_and_exit

_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings=_HELP,
)
app.command(context_settings=_HELP, short_help="what a slice is: chips, hosts, links, distances")(topology)
app.command(context_settings=_HELP, short_help="what a collective costs on a slice, and why")(collective)
app.add_typer(cluster.app, name="cluster", short_help="Ray clusters: Kubernetes manifest, state of the slices")


@app.callback()
def torchtpu(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """TPU slices and their collectives, on paper.

    Exit codes: 0 success, 1 nobody reads the output, 2 wrong arguments, 3 a mistake of this program, 4 the output
    cannot be written, 130 interrupted.
    """


def main() -> None:
    """The command line; ends the process with its exit code."""
    run_and_exit(app)


if __name__ == "__main__":
    main()
