"""A position in the stream of training samples: a number of samples seen, and what gives that number a meaning."""

from collections.abc import Mapping
from typing import Any

from torchtpu_dist.errors import CheckpointError

_REMEDIES = {
    "seed": "set seed to {saved}",
    "seq_len": "set training.seq_len to {saved}",
    "corpus": "use the release of Python the run was started with",
}
"""What a position in the stream depends on, and what to do when it has changed."""


def check_position(position: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse ``position`` (of a checkpoint) if its stream is not the one described by ``here``.

    ``here`` may leave out what is not known yet: the digest of the corpus before the corpus is read.

    Raises:
        CheckpointError: it names what has changed and what to set.
    """
    missing = {"samples_seen", *_REMEDIES} - position.keys()
    if missing:
        raise CheckpointError(
            f"the checkpoint's data position has no {', '.join(sorted(missing))} (got {dict(position)}); "
            "it was not written by this loader, so start anew with checkpoint.resume=never"
        )
    for key, remedy in _REMEDIES.items():
        saved = position[key]
        if key in here and saved != here[key]:
            raise CheckpointError(
                f"the checkpoint's data position is in another stream: {key} was {saved!r} and is now {here[key]!r}; "
                f"to continue {remedy.format(saved=saved)}, or start anew with checkpoint.resume=never"
            )
