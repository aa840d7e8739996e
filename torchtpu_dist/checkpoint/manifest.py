"""The manifest of a checkpoint: what it holds, of which model, at which step, and that it is whole.

``manifest.json`` is the last file written into a checkpoint folder. A folder without one, or whose files are
not as long as the manifest says, is not a checkpoint. Checksums find what has changed without changing length.
"""

import json
import zlib
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from torchtpu_dist.config import Config
from torchtpu_dist.errors import CheckpointError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


class FileRecord(Config):
    """What a file of the checkpoint was like when it was written."""

    length_bytes: int
    crc32: int


class Manifest(Config):
    """Everything of a checkpoint that is not a tensor. The same on every rank and for every layout."""

    format_version: int = Field(FORMAT_VERSION, description="version of the layout of the folder")
    step: int = Field(description="optimizer steps done")
    tokens: int = Field(description="tokens trained on, over all ranks")
    seed: int = Field(
        description="seed of weights, data order and random layers; all three derive from it and the step"
    )
    data: dict[str, Any] = Field(description="position in the data stream, independent of the number of ranks")
    model: dict[str, Any] = Field(description="the shape of the model")
    degrees: dict[str, int] = Field(description="the mesh that wrote it; any other mesh can read it")
    config: dict[str, Any] = Field(description="the recipe of the run, as far as the trainer reads it")
    torch_version: str = Field(description="torch that wrote it")
    files: dict[str, FileRecord] = Field(default_factory=dict, description="every other file")

    def check_model(self, model: dict[str, Any], checkpoint: Path) -> None:
        """Refuse a checkpoint of another model, naming each difference."""
        differences = [
            f"{key}: checkpoint {self.model.get(key)!r}, recipe {model.get(key)!r}"
            for key in sorted(self.model.keys() | model.keys())
            if self.model.get(key) != model.get(key)
        ]
        if differences:
            raise CheckpointError(
                f"checkpoint {checkpoint} is of another model ({'; '.join(differences)}); give the recipe's `model` "
                "section the checkpoint's sizes, or start anew with checkpoint.resume=never"
            )


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest of ``checkpoint``, after comparing the length of every file with it.

    Raises:
        CheckpointError: no manifest, an unreadable one, or a file that is missing or too short.
    """
    path = checkpoint / MANIFEST_NAME
    try:
        manifest = Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CheckpointError(
            f"{checkpoint} is not a finished checkpoint: it has no {MANIFEST_NAME}; name another `step-N` folder"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}){other_checkpoint(checkpoint)}") from error
    except ValidationError as error:
        wrong = ", ".join(sorted({str(item["loc"][0]) for item in error.errors() if item["loc"]}))
        raise CheckpointError(
            f"{path} is not of this version of the format (missing or wrong: {wrong})"
            f"{other_checkpoint(checkpoint)}, or the version of torchtpu-dist that wrote it"
        ) from error
    if manifest.format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"{checkpoint} has format {manifest.format_version}, this version reads format {FORMAT_VERSION}"
        )
    for name, record in manifest.files.items():
        file = checkpoint / name
        found = file.stat().st_size if file.is_file() else None
        if found != record.length_bytes:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: {name} has "
                f"{'gone' if found is None else f'{found} bytes'}, expected {record.length_bytes} bytes"
                f"{other_checkpoint(checkpoint)}"
            )
    return manifest


def other_checkpoint(damaged: Path) -> str:
    """What to do instead, as the end of a sentence: another whole checkpoint beside it, if there is one."""
    others = [path.parent for path in damaged.parent.glob(f"step-*/{MANIFEST_NAME}") if path.parent != damaged]
    if not others:
        return "; there is no other checkpoint beside it: start anew with checkpoint.resume=never"
    newest = max(others, key=lambda path: (path / MANIFEST_NAME).stat().st_mtime_ns)
    return f"; use checkpoint.resume={newest}"


def changed_files(checkpoint: Path, manifest: Manifest, share: int = 0, shares: int = 1) -> list[str]:
    """The files whose content is no longer what was written, among every ``shares``-th from number ``share``."""
    names = sorted(manifest.files)[share::shares]
    return [name for name in names if crc32_of(checkpoint / name) != manifest.files[name].crc32]


def crc32_of(file: Path) -> int:
    """CRC-32 of a file's content, read in pieces."""
    value = 0
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            value = zlib.crc32(piece, value)
    return value
