"""Where chips are, as a child process tells it that is no libtpu, and when that is relied on."""

import pytest

from launcher.cluster import chips
from launcher.cluster.chips import members, read_chips
from launcher.cluster.inventory import ClusterHost
from launcher.cluster.layout import Layout, Member
from launcher.cluster.preflight import HostFacts
from torchtpu_dist.mesh import Slice, assign

SLICE = Slice.parse("v5p-16")  # 2x2x2: host 0 has z = 0, host 1 has z = 1
SQUARE = ((0, 0), (1, 0), (0, 1), (1, 1))


def libtpu(*told: tuple[str, int, list[int]]) -> str:
    return f"print('noise'); print('chips: ' + __import__('json').dumps({list(told)!r}))"


def test_chips_come_in_the_order_of_their_index() -> None:
    program = libtpu(("h", 1, [1, 0, 0]), ("h", 0, [0, 0, 0]), ("h", 3, [1, 1, 0]), ("h", 2, [0, 1, 0]))
    assert read_chips(program) == (((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)), "")


@pytest.mark.parametrize(
    ("program", "why_not"),
    [
        ("import no_libtpu", "exit status 1: ModuleNotFoundError: No module named 'no_libtpu'"),
        ("", "exit status 0: no word"),
        ("import os; os.abort()", "exit status -6: no word"),
        (libtpu(("a", 0, [0, 0, 0]), ("b", 0, [0, 0, 1])), "libtpu told of 2 chips with 1 indices on 2 hosts"),
        (libtpu(("a", 0, [0, 0, 0]), ("a", 1, [0, 1])), "libtpu told of 2 chips with 2 indices on 1 hosts"),
        (libtpu(), "libtpu told of 0 chips with 0 indices on 0 hosts"),
    ],
)
def test_what_cannot_be_read_is_a_fact(program: str, why_not: str) -> None:
    assert read_chips(program) == (None, why_not)


def test_nobody_waits_for_long() -> None:
    assert read_chips("while True: pass", limit_s=0.2) == (None, "libtpu has not answered within 0.2 s")


def test_this_machine_is_not_asked_without_devices() -> None:
    if chips.tpu_devices():
        pytest.skip("this machine has TPUs")
    assert chips.tpu_devices() == []


def host(worker: int, name: str = "s-0") -> ClusterHost:
    return ClusterHost(f"{name}-{worker}", f"10.0.0.{worker}", name, worker, "v5p-16", "2x2x2", 4)


def facts(read: tuple[tuple[int, ...], ...] | None = None, why_not: str = "") -> HostFacts:
    return HostFacts("m", "h", {}, 0.0, True, True, (), read, why_not)


def layer(z: int) -> tuple[tuple[int, ...], ...]:
    return tuple((x, y, z) for x, y in SQUARE)


def test_coordinates_go_before_worker_ids() -> None:
    hosts = [host(0), host(1)]
    found, lines = members(SLICE, [hosts], {"s-0-0": facts(layer(1)), "s-0-1": facts(layer(0))})
    assert (found, lines) == ([[Member(hosts[0], layer(1)), Member(hosts[1], layer(0))]], [])
    layout = Layout.of(assign(SLICE, [("tp", 8)]), found)
    assert [each.name for each in layout.hosts] == ["s-0/1", "s-0/0"]
    assert layout.coordinates[4:] == layer(1)


def test_they_are_counted_from_the_lowest() -> None:
    moved = [tuple((x + 4, y + 2, z + 6) for x, y, z in layer(at)) for at in range(2)]
    found, lines = members(SLICE, [[host(0), host(1)]], {"s-0-0": facts(moved[0]), "s-0-1": facts(moved[1])})
    assert [each.chips for each in found[0]] == [layer(0), layer(1)]
    assert lines == []


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (facts(), facts(), None),  # no TPUs: emulated
        (facts(None, "no libtpu"), facts(None, "no libtpu"), "chip coordinates unreadable: no libtpu"),
        (facts(layer(0)), facts(None, "slow"), "chip coordinates unreadable on 1 of 2 hosts: slow"),
        (facts(layer(0)), facts(layer(0)), "the chip coordinates that were read are not those of such a slice"),
        (facts(layer(0)), facts(layer(1)[:3]), "the chip coordinates that were read are not those of such a slice"),
        (facts(()), facts(()), "the chip coordinates that were read are not those of such a slice"),
    ],
)
def test_otherwise_worker_ids_say_the_order_and_that_is_said(
    first: HostFacts, second: HostFacts, line: str | None
) -> None:
    hosts = [host(0), host(1)]
    found, lines = members(SLICE, [hosts], {"s-0-0": first, "s-0-1": second})
    assert found == [[Member(hosts[0]), Member(hosts[1])]]
    assert [each.partition(" (")[0] for each in lines] == (
        [] if line is None else [f"ranks of slice s-0 follow worker ids: {line}"]
    )


def test_each_slice_is_judged_by_itself() -> None:
    two = Slice.parse("2*v5p-16")
    hosts = [[host(0, name), host(1, name)] for name in ("a", "b")]
    known = {"a-0": facts(layer(0)), "a-1": facts(layer(1)), "b-0": facts(None, "slow"), "b-1": facts(layer(1))}
    found, lines = members(two, hosts, known)
    assert [[each.chips is None for each in of_slice] for of_slice in found] == [[False, False], [True, True]]
    assert len(lines) == 1
    assert lines[0].startswith("ranks of slice b follow worker ids")
