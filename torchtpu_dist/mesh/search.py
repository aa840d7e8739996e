"""The cheapest way to share out the physical axes among the logical ones, exactly.

A way is a set of spans for each logical axis that multiply to its degree, such that on every physical axis the spans
nest: sorted by stride, each begins where the one inside of it ends.

**The cheapest.** The cost of a way is the sum of what each logical axis pays for its own spans. The least is found by
branch and bound: the axes are settled one after the other, the costliest first; whatever no longer nests with what is
settled is struck out, and a branch ends where even the cheapest remaining spans of all other axes cannot beat the best
way so far.

**Ties.** Of ways with the same cost the most natural is taken: the fewest spans, then the fewest axes that are walked
as a line, then the one whose innermost axis, or the next one out, ... has the later physical axes and the nearer
devices, so that ranks run along the slice row by row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from torchtpu_dist.mesh.spans import Span

Spans = tuple[Span, ...]
_RESOLUTION = 10**10  # costs are compared in parts of this of what the cheapest spans of all axes cost together


@dataclass(frozen=True)
class Rating:
    """What some spans are worth to a logical axis: ``cost`` (any unit, 0 or more) and whether they are a line."""

    cost: float
    is_line: bool


Rate = Callable[[int, Spans], Rating]


def cheapest(sides: Sequence[int], degrees: Sequence[int], rate: Rate) -> tuple[Spans, ...]:
    """The spans of each logical axis, in physical order, of the cheapest way.

    ``sides`` are the physical axes; ``degrees`` the logical ones, outermost first, 2 or more each, whose product is
    that of the sides. ``rate(i, spans)`` says what ``spans`` are worth to logical axis i; it is called once for all
    spans that can occur. Costs that differ by less than a billionth count as equal.
    """
    possible = [sorted(spans_with(sides, degree), key=_unnaturalness) for degree in degrees]
    offers = [[(spans, rate(index, spans)) for spans in own] for index, own in enumerate(possible)]
    unit = sum(min(rating.cost for _, rating in offer) for offer in offers) / _RESOLUTION
    if unit == 0:
        unit = max((rating.cost for offer in offers for _, rating in offer), default=0) / _RESOLUTION or 1.0
    menus = [_Menu(offer, index, len(offers), unit) for index, offer in enumerate(offers)]
    order = sorted(range(len(menus)), key=lambda index: -menus[index].keys[0])
    chosen = _Search([menus[index] for index in order]).run()
    return tuple(spans for _, spans in sorted(zip(order, chosen, strict=True)))


def spans_with(sides: Sequence[int], degree: int, axis: int = 0) -> Iterator[Spans]:
    """All spans over ``sides`` (from index ``axis`` on) whose lengths multiply to ``degree``, in physical order."""
    if degree == 1:
        yield ()
    elif axis < len(sides):
        side = sides[axis]
        yield from spans_with(sides, degree, axis + 1)
        for length in range(2, min(side, degree) + 1):
            if side % length == 0 and degree % length == 0:
                strides = [stride for stride in range(1, side // length + 1) if side // length % stride == 0]
                for rest in spans_with(sides, degree // length, axis + 1):
                    yield from ((Span(axis, length, stride), *rest) for stride in strides)


def _unnaturalness(spans: Spans) -> tuple[int, list[tuple[int, int, int]]]:
    return len(spans), [(-span.axis, span.stride, -span.length) for span in reversed(spans)]


class _Menu:
    """All spans a logical axis may have, best first. Sets of them are ints: bit i stands for ``spans[i]``.

    The ``keys`` of one way add up, and sums compare like tuples: cost, number of spans, number of lines, and the places
    in the natural order, that of the innermost axis first.
    """

    def __init__(self, offers: Sequence[tuple[Spans, Rating]], index: int, num_axes: int, unit: float) -> None:
        digit = 1 << 16
        assert len(offers) < digit
        keyed = []
        for place, (spans, rating) in enumerate(offers):
            head = (round(rating.cost / unit) * digit + len(spans)) * digit + rating.is_line
            keyed.append((head * digit**num_axes + place * digit**index, spans))
        keyed.sort()
        self.keys = [key for key, _ in keyed]
        self.spans = [spans for _, spans in keyed]
        self.everything = (1 << len(keyed)) - 1
        self._with: dict[Span, int] = {}
        for place, (_, spans) in enumerate(keyed):
            for span in spans:
                self._with[span] = self._with.get(span, 0) | 1 << place
        self._beside: dict[Span, int] = {}

    def least(self, among: int) -> int:
        """The key of the best spans in the set ``among``."""
        return self.keys[(among & -among).bit_length() - 1]

    def beside(self, span: Span) -> int:
        """The set of spans that nest with ``span`` of another logical axis."""
        if span not in self._beside:
            clashing = [with_ for own, with_ in self._with.items() if not _nest(own, span)]
            self._beside[span] = self.everything & ~reduce(or_, clashing, 0)
        return self._beside[span]


def _nest(a: Span, b: Span) -> bool:
    return a.axis != b.axis or a.stride % b.reach == 0 or b.stride % a.reach == 0


class _Search:
    """Branch and bound over ``menus``, settled in their order."""

    def __init__(self, menus: Sequence[_Menu]) -> None:
        self._menus = menus
        self._least: int | None = None
        self._best: list[Spans] | None = None

    def run(self) -> list[Spans]:
        """The spans of each menu."""
        self._settle([], 0, [menu.everything for menu in self._menus])
        assert self._best is not None, "every product of degrees can be nested"
        return self._best

    def _settle(self, settled: list[Spans], paid: int, left: list[int]) -> None:
        """Go through the spans of the next axis; ``left`` has what is still possible for it and for those after it."""
        if not left:
            self._least, self._best = paid, settled
            return
        menu, later = self._menus[len(settled)], self._menus[len(settled) + 1 :]
        least_later = sum(map(_Menu.least, later, left[1:]))
        for place in _bits(left[0]):
            total = paid + menu.keys[place]
            if not self._beats(total + least_later):
                return  # nor do the ones after it, which cost more
            nesting = [
                reduce(and_, map(other.beside, menu.spans[place]), among)
                for other, among in zip(later, left[1:], strict=True)
            ]
            if all(nesting) and self._beats(total + sum(map(_Menu.least, later, nesting))):
                self._settle([*settled, menu.spans[place]], total, nesting)

    def _beats(self, least: int) -> bool:
        return self._least is None or least < self._least


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
