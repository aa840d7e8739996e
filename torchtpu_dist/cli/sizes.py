"""Numbers of bytes as people write and read them: ``64MiB``, ``1GB``, ``4096``."""

import re
from difflib import get_close_matches
from fractions import Fraction
from operator import itemgetter

from torchtpu_dist.errors import RecipeError

EXAMPLES = "64MiB, 1GB, 1.5GiB or 4096"
MOST = 10**18

_UNITS = {"": 1, "B": 1} | {
    unit: factor
    for power, letter in enumerate("KMGT", 1)
    for unit, factor in ((f"{letter}iB", 2 ** (10 * power)), (f"{letter}B", 10 ** (3 * power)))
}
_BY_LOWER = {unit.lower(): factor for unit, factor in _UNITS.items()}
_ROUNDED = ("B", "KB", "MB", "GB", "TB")
_SIZE = re.compile(r"(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*(?P<unit>[A-Za-z]*)")


def parse_bytes(text: str) -> int:
    """The bytes that ``text`` says: ``KiB`` is 2**10 bytes, ``KB`` 10**3, and so on up to T; no unit is bytes.

    Raises RecipeError for what is no size, for parts of a byte, for 0 and for more than 10**18 (1 EB).
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _BY_LOWER.get(match["unit"].lower()) if match is not None else None
    if match is not None and re.fullmatch(r"[KMGT]i?b", match["unit"]):
        letter = match["unit"][0]
        kind = {"K": "kilobit", "M": "megabit", "G": "gigabit", "T": "terabit"}[letter]
        raise RecipeError(f"{text!r}: {match['unit']} is {kind}; write {letter}B or {letter}iB, bytes")
    if match is None or factor is None:
        raise RecipeError(f"{text!r} is not a size{_meant(match)}; expected bytes, e.g. {EXAMPLES}")
    size = Fraction(match["number"].replace("_", "")) * factor
    if size.denominator != 1:
        raise RecipeError(f"{text!r} is {float(size):g} bytes; expected a whole number of bytes, e.g. {EXAMPLES}")
    if not 1 <= size <= MOST:
        raise RecipeError(f"{text!r} is {float(size):g} bytes; expected 1 byte to 1 EB (10**18), e.g. {EXAMPLES}")
    return int(size)


def _meant(match: re.Match[str] | None) -> str:
    if match is None:
        return ""
    near = get_close_matches(match["unit"].lower(), [unit for unit in _BY_LOWER if unit], n=1, cutoff=0.5)
    proper = [unit for unit in _UNITS if near and unit.lower() == near[0]]
    return f": no unit is called {match['unit']!r}" + (f", did you mean {proper[0]}" if proper else "")


def bytes_text(num_bytes: int) -> str:
    """``num_bytes`` for people: the shortest exact form of up to four digits (``64 MiB``, ``606 MB``), else rounded."""
    exact = []
    for unit, factor in _UNITS.items():
        value = Fraction(num_bytes, factor)
        digits = f"{float(value):.4g}"
        if unit and "e" not in digits and Fraction(digits) == value >= 1:
            exact.append((len(digits + unit), -factor, f"{digits} {unit}"))
    if exact:
        return min(exact)[-1]
    unit, factor = max(
        ((unit, factor) for unit, factor in _UNITS.items() if unit in _ROUNDED and factor <= num_bytes),
        key=itemgetter(1),
    )
    return f"{num_bytes / factor:.4g} {unit}"
