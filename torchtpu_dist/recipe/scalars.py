"""What a bare word in a recipe means: the scalar rules of YAML 1.2, decimal only.

PyYAML follows YAML 1.1, where ``3e-4`` is text, ``010`` is 8, ``1:30`` is 90 and ``on`` is true. Here ``3e-4`` is the
number people mean, and whatever could be read in two ways is an error that says what to write.
"""

import math
import re

Scalar = None | bool | int | float | str

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 400  # digits; no float holds more than 309 before its point, and int() refuses 4,300


class ScalarError(ValueError):
    """A bare word that could be read in two ways, or that no number can hold."""


def parse_scalar(text: str) -> Scalar:
    """The value of the unquoted ``text``.

    ``null``, ``~`` and nothing at all are ``None``; ``true`` and ``false`` are booleans; decimal integers and floats
    (with or without a point and an exponent) are numbers; everything else is text, ``on``, ``no``, ``1:30``, ``0x10``
    and ``1_000`` too.

    Raises:
        ScalarError: ``010`` (8 or 10?), and numbers that are not finite (``1e999``).
    """
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _LEADING_ZERO.fullmatch(text):
        raise ScalarError(f"got {text}, {_two_readings(text)}")
    if len(text) > _LONGEST_NUMBER and (_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)):
        raise ScalarError(f"got a number of {len(text)} digits, expected at most {_LONGEST_NUMBER}")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise ScalarError(f"got {text}, expected a number that a 64-bit float can hold (up to 1.8e308)")
        return number
    return text


def _two_readings(text: str) -> str:
    decimal = int(text)
    try:
        octal = int(text.lstrip("+-"), 8) * (-1 if text.startswith("-") else 1)
    except ValueError:  # 09 has no octal reading
        octal = decimal
    choice = str(decimal) if octal == decimal else f"{octal} (if it is octal) or {decimal}"
    return f'expected a number without leading zeros; write {choice}, or "{text}" in quotes if it is text'


def looks_like_a_number(text: str) -> bool:
    """Whether ``text`` would be a number if it stood without quotes."""
    return bool(_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text))


def show(value: object) -> str:
    """``value`` as an error message quotes it, in the words of YAML: ``"abc"``, ``true``, ``null``, ``3e-4``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + _short(value.replace("\n", "\\n")) + '"'
    return _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
