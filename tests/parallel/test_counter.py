"""The generator itself: published outputs, the quantile against the standard library's, and position-free bits."""

from statistics import NormalDist

import numpy as np
import pytest

from torchtpu_dist.parallel.counter import normal_quantile_from_middle, random_bits, stream_key, truncated_normal


def counters(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def test_published_splitmix64_outputs():
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert random_bits(1234567, np.arange(4, dtype=np.uint64)).tolist() == expected


def test_quantile_equals_the_standard_library():
    q = np.concatenate([np.linspace(-0.4999, 0.4999, 4001), [0.0, 0.425, -0.425, 0.4999999]])
    expected = np.array([NormalDist().inv_cdf(0.5 + each) for each in q])
    np.testing.assert_allclose(
        normal_quantile_from_middle(q), expected, rtol=1e-10, atol=1e-15
    )  # 0.5 + q itself is rounded


def test_bits_do_not_depend_on_the_company():
    together = truncated_normal(7, np.arange(10_000, dtype=np.uint64), 3.0)
    alone = [truncated_normal(7, counters(index), 3.0)[0] for index in range(0, 10_000, 37)]
    assert together[::37].tolist() == alone
    shuffled = np.random.default_rng(0).permutation(10_000).astype(np.uint64)
    assert truncated_normal(7, shuffled, 3.0).tolist() == together[shuffled].tolist()


@pytest.mark.parametrize("cut", [1.0, 3.0, 6.0])
def test_moments_of_the_truncated_normal(cut):
    values = truncated_normal(stream_key(0, "w"), np.arange(400_000, dtype=np.uint64), cut)
    inside = 2 * NormalDist().cdf(cut) - 1
    std = (1 - 2 * cut * NormalDist().pdf(cut) / inside) ** 0.5
    assert abs(values.mean()) < 5 * std / len(values) ** 0.5
    assert values.std() == pytest.approx(std, rel=0.006)
    assert 0.98 * min(cut, 4.2) < np.abs(values).max() <= cut
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.01


def test_streams_and_far_indices_differ():
    near, far = np.arange(1000, dtype=np.uint64), np.arange(1000, dtype=np.uint64) + np.uint64(1 << 32)
    streams = [
        truncated_normal(stream_key(seed, name), index, 3.0)
        for seed, name, index in ((0, "a", near), (1, "a", near), (0, "b", near), (0, "a", far), (10, "", near))
    ]
    assert len({each.tobytes() for each in streams}) == 5
    assert np.abs(np.corrcoef(streams) - np.eye(5)).max() < 0.15
    assert stream_key(1, "0a") != stream_key(10, "a")
