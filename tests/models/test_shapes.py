"""Counts of parameters and FLOPs against what is published and against the built model."""

import dataclasses

import pytest
import torch

from torchtpu_dist.models.registry import build_model
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS, num_parameters, train_flops_per_token

PUBLISHED_PARAMETERS = {
    "1b": 1_235_814_400,
    "8b": 8_030_261_248,
    "70b": 70_553_706_496,
    "405b": 405_853_388_800,
}


@pytest.mark.parametrize("flavor", PUBLISHED_PARAMETERS)
def test_published_counts(flavor: str) -> None:
    assert num_parameters(LLAMA3_FLAVORS[flavor]) == PUBLISHED_PARAMETERS[flavor]


@pytest.mark.parametrize("flavor", LLAMA3_FLAVORS)
def test_counts_are_those_of_the_built_model(flavor: str) -> None:
    args = LLAMA3_FLAVORS[flavor]
    with torch.device("meta"):
        model = build_model(args)
    assert num_parameters(args) == sum(parameter.numel() for parameter in model.parameters())


def test_debug_divides_for_every_mesh_of_eight_devices() -> None:
    args = LLAMA3_FLAVORS["debug"]
    assert 1_000_000 < num_parameters(args) < 5_000_000
    assert all(side % 8 == 0 for side in (args.dim, args.ffn_dim, args.vocab_size, args.n_heads))
    assert args.n_kv_heads % 4 == 0


def test_flops_of_405b_agree_with_its_paper() -> None:
    # arXiv:2407.21783: 3.8e25 FLOPs for 15.6 T tokens, at 8,192 tokens a sequence. They count 6 a parameter; the
    # attention between positions, counted here too, is another few per cent.
    published = 3.8e25 / 15.6e12
    assert published < train_flops_per_token(LLAMA3_FLAVORS["405b"], 8192) < 1.05 * published


def test_flops_term_by_term() -> None:
    args = dataclasses.replace(
        LLAMA3_FLAVORS["debug"], dim=16, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=24, vocab_size=10
    )
    weights = 2 * (16 * 16 + 16 * 8 + 16 * 8 + 16 * 16 + 3 * 16 * 24) + 10 * 16
    seen_positions_a_token = 100 / 2
    attention = 3 * 2 * (2 * 16 * seen_positions_a_token) * 2  # forward + backward; two products; two layers
    assert train_flops_per_token(args, 100) == 6 * weights + attention
    tied = dataclasses.replace(args, tied_embeddings=True)
    assert train_flops_per_token(tied, 100) == train_flops_per_token(args, 100)
