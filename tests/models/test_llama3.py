"""The arithmetic of the model against independent, slower ways to write it."""

import cmath
import dataclasses
import math

import pytest
import torch
from torch import Tensor

from torchtpu_dist.models.llama3 import Attention, Llama3, rotary_frequencies, rotary_tables, rotate
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS, RotaryScaling
from torchtpu_dist.parallel.rng import Constant, Normal

ARGS = dataclasses.replace(
    LLAMA3_FLAVORS["debug"], dim=32, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=48, vocab_size=40, init_std=0.02
)
CPU = torch.device("cpu")


def test_rotary_turns_pairs_as_complex_numbers() -> None:
    head_dim, theta = 8, 500.0
    heads = torch.randn(2, 3, 5, head_dim, generator=torch.Generator().manual_seed(0))
    turned = rotate(heads, *rotary_tables(5, head_dim, theta, None, CPU))
    for position in range(5):
        for pair in range(head_dim // 2):
            turn = cmath.exp(1j * position * theta ** (-2 * pair / head_dim))
            for before, after in zip(
                heads[:, :, position].flatten(0, 1), turned[:, :, position].flatten(0, 1), strict=True
            ):
                expected = complex(before[pair], before[pair + head_dim // 2]) * turn
                assert complex(after[pair], after[pair + head_dim // 2]) == pytest.approx(expected, abs=1e-5)


def test_rotary_keeps_the_dtype_and_computes_in_float32() -> None:
    heads = torch.randn(1, 1, 4000, 8)
    tables = rotary_tables(4000, 8, 10_000.0, None, CPU)
    in_bfloat16 = rotate(heads.bfloat16(), *tables)
    assert in_bfloat16.dtype == torch.bfloat16
    torch.testing.assert_close(in_bfloat16, rotate(heads.bfloat16().float(), *tables).bfloat16(), rtol=0, atol=0)


def test_rotary_scaling_stretches_only_slow_frequencies() -> None:
    scaling = RotaryScaling(factor=8.0)
    plain = rotary_frequencies(128, 500_000.0, None)
    scaled = rotary_frequencies(128, 500_000.0, scaling)
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 8192 / 4:
            assert after == before
        elif wavelength > 8192:
            assert after == pytest.approx(before / 8)
        else:
            blend = (8192 / wavelength - 1) / (4 - 1)
            assert after == pytest.approx((1 - blend) * before / 8 + blend * before)
    assert plain[0] == scaled[0] == 1.0


def test_grouped_queries_equal_repeated_keys_and_values() -> None:
    torch.manual_seed(1)
    attention = Attention(ARGS)
    hidden = torch.randn(2, 7, ARGS.dim)
    torch.testing.assert_close(attention(hidden), _attention_by_hand(attention, hidden), rtol=1e-5, atol=1e-6)


def _attention_by_hand(attention: Attention, hidden: Tensor) -> Tensor:
    batch, seq, _ = hidden.shape
    group = ARGS.n_heads // ARGS.n_kv_heads
    tables = rotary_tables(seq, ARGS.head_dim, ARGS.rope_theta, None, CPU)

    def heads(projected: Tensor, repeats: int) -> Tensor:
        return projected.view(batch, seq, -1, ARGS.head_dim).repeat_interleave(repeats, dim=2).transpose(1, 2)

    queries = rotate(heads(attention.wq(hidden), 1), *tables)
    keys = rotate(heads(attention.wk(hidden), group), *tables)
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(ARGS.head_dim)
    scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), float("-inf"))
    mixed = scores.softmax(-1) @ heads(attention.wv(hidden), group)
    result: Tensor = attention.wo(mixed.transpose(1, 2).flatten(2))
    return result


def test_no_position_sees_a_later_token() -> None:
    torch.manual_seed(2)
    model = Llama3(ARGS)
    tokens = torch.randint(0, ARGS.vocab_size, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % ARGS.vocab_size
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 12, ARGS.vocab_size)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_every_parameter_has_a_distribution_and_the_residual_writers_a_smaller_one() -> None:
    with torch.device("meta"):
        model = Llama3(ARGS)
    chosen = model.distributions()
    assert chosen.keys() == dict(model.named_parameters()).keys()
    assert chosen["layers.1.attention.wo.weight"] == chosen["layers.0.feed_forward.w2.weight"] == Normal(0.02 / 2)
    assert chosen["tok_embeddings.weight"] == chosen["layers.0.attention.wq.weight"] == Normal(0.02)
    assert chosen["norm.weight"] == chosen["layers.0.ffn_norm.weight"] == Constant(1.0)


def test_nothing_is_kept_but_parameters() -> None:
    assert not list(Llama3(ARGS).buffers())


def test_tied_embeddings_are_one_parameter() -> None:
    model = Llama3(dataclasses.replace(ARGS, tied_embeddings=True))
    assert model.output.weight is model.tok_embeddings.weight
    assert "output.weight" not in model.distributions()
