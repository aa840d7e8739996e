"""A picture of a slice in a file: what can be wrong with the file is found before anything is drawn."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.mesh import Slice

Kind = Literal[".png", ".html"]
PNG: Kind = ".png"
HTML: Kind = ".html"
_LIBRARY = {PNG: "matplotlib", HTML: "plotly"}


@dataclass(frozen=True)
class Picture:
    """A file that will hold a picture."""

    path: Path
    kind: Kind

    @classmethod
    def to(cls, path: Path, kind: Kind) -> "Picture":
        """Raises RecipeError when ``path`` has another suffix or cannot be written, or a library is missing."""
        option = f"--{kind[1:]}"
        if path.suffix.lower() != kind:
            raise RecipeError(f"{option} {path}: the file's name ends in {path.suffix!r}; expected {kind!r}")
        folder = path.parent
        if not folder.is_dir():
            raise RecipeError(f"{option} {path}: there is no folder {folder}; make it first")
        if path.is_dir():
            raise RecipeError(f"{option} {path}: is a folder; expected a file")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise RecipeError(f"{option} {path}: may not be written; expected a writable file or folder")
        if find_spec(_LIBRARY[kind]) is None:
            raise RecipeError(
                f"{option} draws with {_LIBRARY[kind]}, which is not installed: pip install 'torchtpu-dist[draw]'"
            )
        return cls(path, kind)

    def draw(self, slice_: Slice) -> None:
        """Draw ``slice_`` into the file. Raises RecipeError when it cannot be written after all."""
        try:
            if self.kind == PNG:
                from torchtpu_dist.cli.picture_png import write_png

                write_png(slice_, self.path)
            else:
                from torchtpu_dist.cli.picture_html import write_html

                write_html(slice_, self.path)
        except OSError as error:
            raise RecipeError(f"{self.path}: cannot be written: {error.strerror or error}") from error
