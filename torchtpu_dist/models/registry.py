"""From the ``model`` section of a recipe to a model. Importing this, and asking for a shape, imports no torch."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.models.config import ModelConfig
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS, Llama3Args

if TYPE_CHECKING:
    from torchtpu_dist.models.llama3 import Llama3

FAMILIES: Mapping[str, Mapping[str, Llama3Args]] = {"llama3": LLAMA3_FLAVORS}

_OVERRIDES = ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size")


def model_args(config: ModelConfig) -> Llama3Args:
    """The shape a recipe asks for: the flavor's, with the recipe's own sizes in place of some.

    Raises :class:`RecipeError`, with the recipe's key, for an unknown family or flavor and for sizes that make no
    model.
    """
    flavors = FAMILIES.get(config.name)
    if flavors is None:
        raise RecipeError(_unknown("model.name", config.name, "model family", FAMILIES))
    published = flavors.get(config.flavor)
    if published is None:
        raise RecipeError(_unknown("model.flavor", config.flavor, f"size of {config.name}", flavors))
    overrides = {key: value for key in _OVERRIDES if (value := getattr(config, key)) is not None}
    args = dataclasses.replace(published, **overrides)
    _refuse_impossible(args, config)
    return args


def checkpoint_shape(config: ModelConfig, args: Llama3Args) -> dict[str, Any]:
    """What must be equal for weights of one model to be weights of another, as plain JSON values.

    How the weights began (``init_std``) is not part of it.
    """
    shape = dataclasses.asdict(args)
    del shape["init_std"]
    return {"name": config.name, **shape}


def build_model(args: Llama3Args) -> Llama3:
    """The model with uninitialised or default parameters, on the default device.

    Call it under ``torch.device("meta")`` to have shapes only; then wrap, ``to_empty`` and initialise from
    ``model.distributions()``.
    """
    from torchtpu_dist.models.llama3 import Llama3

    return Llama3(args)


def _refuse_impossible(args: Llama3Args, config: ModelConfig) -> None:
    def key(field: str) -> str:
        chosen = getattr(config, field) is not None
        return f"model.{field}" if chosen else f"model.{field} (flavor {config.flavor})"

    if args.dim % args.n_heads:
        raise RecipeError(
            f"model.n_heads: {args.n_heads} heads do not divide {key('dim')} {args.dim}; "
            f"nearest that do: {_either(_nearest_divisors(args.dim, args.n_heads))}"
        )
    if args.head_dim % 2:
        even = [heads for heads in _divisors(args.dim) if (args.dim // heads) % 2 == 0]
        remedy = f"nearest that do: {_either(_nearest(even, args.n_heads))}" if even else "use an even model.dim"
        raise RecipeError(
            f"model.n_heads: {args.n_heads} heads of {key('dim')} {args.dim} are {args.head_dim} wide, and rotary "
            f"positions turn pairs, so the width has to be even; {remedy}"
        )
    if args.n_heads % args.n_kv_heads:
        raise RecipeError(
            f"model.n_kv_heads: {args.n_kv_heads} KV heads do not divide {key('n_heads')} {args.n_heads}; "
            f"nearest that do: {_either(_nearest_divisors(args.n_heads, args.n_kv_heads))}"
        )


def _unknown(key: str, got: str, kind: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(got.lower(), names, n=1, cutoff=0.5)
    suggestion = f"; did you mean {close[0]!r}?" if close else ""
    return f"{key}: there is no {kind} {got!r}{suggestion} (known: {', '.join(names)})"


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def _nearest_divisors(number: int, wanted: int) -> list[int]:
    return _nearest(_divisors(number), wanted)


def _nearest(candidates: list[int], wanted: int) -> list[int]:
    below = [candidate for candidate in candidates if candidate <= wanted]
    above = [candidate for candidate in candidates if candidate > wanted]
    return below[-1:] + above[:1]


def _either(values: list[int]) -> str:
    return " or ".join(str(value) for value in values)
