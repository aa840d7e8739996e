"""``torchtpu collective OP``: what one collective costs on a slice, in words, as JSON, as a film."""

import json
from pathlib import Path
from typing import Annotated

import typer

_OP = "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or reduce"
_BYTES = (
    "the full array: the gathered one for all_gather, the input for all_reduce and reduce_scatter, the array for "
    "broadcast and reduce, what each device holds for all_to_all; 4096, 64MiB (2**20 bytes each), 1GB (10**9), 1.5GiB"
)
_AXES = (
    "whole axes that the group spans, by name: x, x,y, core; of several slices also slice. All groups that lie side "
    "by side run at the same time. all: every device of every slice in one group"
)
_ROOT = "who broadcasts or receives: a number, or an index for each axis of the group (0,1,3)  [default: 0]"
_ALGORITHM = "auto: the cheapest; or one by its name (a wrong name lists all)"
_HTML = "film the collective to an .html file: links and chips step by step"
_DEAD_LINK = "the link between neighbouring chips A and B is dead: 0,0,0-0,0,1; of several slices 1:0,0,0-0,0,1"
_DEAD_CHIP = "this chip is dead, its group goes on without it: 0,0,1; of several slices 1:0,0,1"
_SLOW_LINK = "the link has a part F of its rate left: 0,0,0-0,0,1=0.5"


def collective(
    op: Annotated[str, typer.Argument(metavar="OP", help=_OP)],
    slice_name: Annotated[str, typer.Option("--slice", metavar="NAME", help="a slice: v5e-16, v5p:4x4x8, 2*v5p-32")],
    num_bytes: Annotated[str, typer.Option("--bytes", metavar="N", help=_BYTES)],
    axes: Annotated[str, typer.Option(help=_AXES)] = "all",
    root: Annotated[str | None, typer.Option(help=_ROOT, show_default=False)] = None,
    algorithm: Annotated[str, typer.Option(help=_ALGORITHM)] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
    dead_link: Annotated[list[str] | None, typer.Option(metavar="A-B", help=_DEAD_LINK)] = None,
    dead_chip: Annotated[list[str] | None, typer.Option(metavar="P", help=_DEAD_CHIP)] = None,
    slow_link: Annotated[list[str] | None, typer.Option(metavar="A-B=F", help=_SLOW_LINK)] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help=_HTML)] = None,
) -> int:
    """Price the collective OP on a slice: algorithm, steps, time, bandwidth, and the bound.

    Everything is modelled, nothing is run; docs/validation.md compares with measurements. --dead-link, --dead-chip and
    --slow-link may be given several times: they add what is left when the collective is re-routed around them. --html
    needs the extra "draw": pip install 'torchtpu-dist[draw]'.
    """
    from torchtpu_dist.cli.collective_report import as_object, in_words
    from torchtpu_dist.cli.question import Question

    question = Question.parse(
        op, slice_name, num_bytes, axes, root, algorithm, dead_link or (), dead_chip or (), slow_link or ()
    )
    if html is not None:
        question.check_film(html)
    price, faults = question.price(), question.price_with_faults()
    if as_json:
        typer.echo(json.dumps(as_object(price, question, faults)))
    else:
        typer.echo("\n".join(in_words(price, question, faults)))
    if html is not None:
        question.write_film(price, html)
        typer.echo(f"wrote {html}", err=True)
    return 0
