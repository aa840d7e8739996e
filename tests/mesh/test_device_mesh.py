"""The torch DeviceMesh has the assignment's groups. One process: the ``fake`` backend moves no bytes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh import Slice, assign
from torchtpu_dist.mesh.device_mesh import build_device_mesh


@contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_mesh_groups_are_the_assignments() -> None:
    axes = [("dp_replicate", 1), ("dp_shard", 2), ("cp", 2), ("tp", 2)]
    assignment = assign(Slice.parse("v5p-16"), axes)
    for rank in (0, 5):
        with fake_rank(rank, 8):
            mesh = build_device_mesh(assignment.slice, axes)
            assert mesh.mesh_dim_names == ("dp_shard", "cp", "tp")
            assert mesh.mesh.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
            assert mesh.device_type == "cpu"
            for axis in mesh.mesh_dim_names:
                ranks = tuple(dist.get_process_group_ranks(mesh.get_group(axis)))
                assert ranks == assignment.group_ranks(axis, rank)


def test_one_device_is_a_mesh_of_one_axis() -> None:
    with fake_rank(0, 1):
        mesh = build_device_mesh(Slice.parse("v5e-1"), [("dp_shard", 1), ("tp", 1)])
        assert mesh.mesh_dim_names == ("dp_shard",)
        assert mesh.mesh.tolist() == [0]


def test_ranks_in_any_order() -> None:
    axes = [("dp_shard", 2), ("tp", 2)]
    for rank in range(4):
        with fake_rank(rank, 4):
            mesh = build_device_mesh(Slice.parse("v5e-4"), axes, ranks=(3, 0, 1, 2))
            assert mesh.mesh.tolist() == [[3, 0], [1, 2]]
            groups = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in ("dp_shard", "tp")]
            assert groups == [[3, 1] if rank in (1, 3) else [0, 2], [3, 0] if rank in (0, 3) else [1, 2]]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 1, 2, 2), (1, 2, 3, 4)])
def test_refused_unless_every_rank_has_a_place(ranks: tuple[int, ...]) -> None:
    with (
        fake_rank(0, 4),
        pytest.raises(AssignmentError, match="expected each of 0 to 3 once"),
    ):
        build_device_mesh(Slice.parse("v5e-4"), [("dp_shard", 2), ("tp", 2)], ranks=ranks)


def test_a_torch_that_sorts_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    new_group = dist.new_group
    monkeypatch.setattr(dist, "new_group", lambda ranks, group_desc: new_group(ranks, group_desc=group_desc))
    asked = Slice.parse("v5e-4"), [("dp_shard", 2), ("tp", 2)]
    with fake_rank(0, 4):
        mesh = build_device_mesh(*asked, ranks=(0, 2, 1, 3))  # every group ascends
        assert mesh.mesh.tolist() == [[0, 2], [1, 3]]
        with pytest.raises(AssignmentError, match=r"group of ranks \[3, 1\], .* torch 2.13 and newer can make it"):
            build_device_mesh(*asked, ranks=(3, 0, 1, 2))


def test_refused_without_the_right_world() -> None:
    asked = Slice.parse("v5e-8"), [("dp_shard", 4), ("tp", 2)]
    with pytest.raises(AssignmentError, match="call init_process_group before"):
        build_device_mesh(*asked)
    with (
        fake_rank(1, 4),
        pytest.raises(AssignmentError, match=r"rank 1: .* has 4 ranks, but slice v5e-8 has 8 devices"),
    ):
        build_device_mesh(*asked)
    with pytest.raises(AssignmentError, match="mesh axis tp of degree 3 does not fit on slice v5e-8"):
        build_device_mesh(Slice.parse("v5e-8"), [("dp_shard", 4), ("tp", 3)])
