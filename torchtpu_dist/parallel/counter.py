"""A counter-based generator: element i of a stream is a function of (stream, i), computed without its predecessors.

Only exact operations are used: integer arithmetic modulo 2**64, and float64 ``+ - * / sqrt``, each rounded once as
IEEE 754 says. So an element has the same bits wherever in an array, in whatever chunk and on whatever machine it is
computed. numpy's ``log`` and its like do not promise that, which is why the one logarithm is written out.

Sources: the stream is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
whose nth output needs no state but n. The normal quantile is algorithm AS 241, PPND16 (Wichura, Applied Statistics
37, 1988), relative accuracy 1e-16.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

MAX_CUT = 6.0
"""The largest cut of a truncated normal: beyond 6.6 the quantile would need AS 241's third branch."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def stream_key(seed: int, name: str) -> int:
    """The 64-bit key of the stream that belongs to ``name`` under ``seed``: BLAKE2b of both."""
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest(), "little")


def random_bits(key: int, index: UInt64) -> UInt64:
    """64 random bits for every element of ``index`` (uint64, any shape): output number ``index`` of SplitMix64(key)."""
    state = np.uint64(key) + (index + np.uint64(1)) * _GOLDEN  # arrays wrap around modulo 2**64
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def truncated_normal(key: int, index: UInt64, cut: float) -> Float64:
    """A standard normal cut off at ``-cut`` and ``cut``, float64, for every element of ``index``.

    By inversion: one uniform number, no rejection. ``cut`` is in standard deviations, at most :data:`MAX_CUT`.
    """
    inside = math.erf(cut / math.sqrt(2.0))  # the probability within the cut
    centred = (random_bits(key, index) >> np.uint64(11)).astype(np.float64) + (0.5 - 2.0**52)
    return normal_quantile_from_middle(centred * (inside * 2.0**-53))


def normal_quantile_from_middle(q: Float64) -> Float64:
    """The standard normal quantile of probability ``0.5 + q``, for a contiguous float64 array, |q| < 0.5 - 1.4e-11."""
    small = 0.180625 - q * q  # 0.425 ** 2 - q ** 2: not negative in the middle branch
    z = q * _polynomial(_A, small) / _polynomial(_B, small)
    outer = np.flatnonzero(small < 0.0)
    far = q[outer]
    r = np.sqrt(-_log(0.5 - np.abs(far))) - 1.6
    z[outer] = np.copysign(_polynomial(_C, r) / _polynomial(_D, r), far)
    return z


def _log(x: Float64) -> Float64:
    """Natural logarithm from exact operations: 2 atanh((m - 1) / (m + 1)) of the mantissa, plus the exponent's share.

    |(m - 1) / (m + 1)| <= 0.1716, so twelve terms leave a remainder below 1e-19.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _polynomial(_ATANH, s * s)
    return s * series * 2.0 + (exponent - low) * math.log(2.0)


def _polynomial(coefficients: Sequence[float], x: Float64) -> Float64:
    """Horner's rule, lowest power first in ``coefficients``."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= x
        total += coefficient
    return total


_ATANH = tuple(1.0 / (2 * k + 1) for k in range(12))
# AS 241: numerator and denominator of the middle branch, then of the near tail
_A = (
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
    4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3,
)  # fmt: skip
_B = (
    1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3,
)  # fmt: skip
_C = (
    1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
    1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4,
)  # fmt: skip
_D = (
    1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
    1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9,
)  # fmt: skip
