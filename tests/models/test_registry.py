"""From the recipe's ``model`` section to a shape, and the mistakes on the way."""

import subprocess
import sys

import pytest

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.models.config import ModelConfig
from torchtpu_dist.models.registry import model_args
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS


def test_overrides_replace_only_what_they_name() -> None:
    args = model_args(ModelConfig(flavor="8b", n_layers=2, ffn_dim=1024))
    published = LLAMA3_FLAVORS["8b"]
    assert (args.n_layers, args.ffn_dim) == (2, 1024)
    assert (args.dim, args.n_heads, args.vocab_size) == (published.dim, published.n_heads, published.vocab_size)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"name": "lama3"}, ["model.name", "'lama3'", "did you mean 'llama3'"]),
        ({"flavor": "debgu"}, ["model.flavor", "did you mean 'debug'", "debug, 1b, 8b, 70b, 405b"]),
        ({"flavor": "8B"}, ["model.flavor", "did you mean '8b'"]),
        ({"n_heads": 7}, ["model.n_heads: 7", "model.dim (flavor debug) 256", "4 or 8"]),
        ({"dim": 200, "n_heads": 16, "n_kv_heads": 8}, ["model.n_heads: 16", "model.dim 200", "10 or 20"]),
        ({"dim": 72}, ["model.n_heads: 8", "9 wide", "even", "6 or 9"]),
        ({"dim": 9, "n_heads": 3, "n_kv_heads": 3}, ["even model.dim"]),
        ({"n_kv_heads": 3}, ["model.n_kv_heads: 3", "model.n_heads (flavor debug) 8", "2 or 4"]),
    ],
)
def test_mistakes_are_named(section: dict[str, object], said: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        model_args(ModelConfig(**section))
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_asking_for_a_shape_imports_no_torch() -> None:
    code = (
        "import sys; from torchtpu_dist.models.registry import model_args; "
        "from torchtpu_dist.models.config import ModelConfig; model_args(ModelConfig()); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
