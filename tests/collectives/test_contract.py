"""What a rank may pass to a collective: the pure checks and the fingerprint."""

import pytest
import torch

from torchtpu_dist.collectives.contract import (
    check_count,
    check_reduce,
    check_same_dtype,
    check_tensor,
    describe_mismatch,
    fingerprint,
    split_rows,
)
from torchtpu_dist.errors import ContractError


def test_rows_are_split_evenly_or_as_asked():
    tensor = torch.empty(6, 2)
    assert split_rows("it", tensor, (), 3) == ((0, 4), (4, 4), (8, 4))
    assert split_rows("it", tensor, (1, 0, 5), 3) == ((0, 2), (2, 0), (2, 10))
    assert split_rows("it", torch.empty(0, 3), (), 4) == ((0, 0),) * 4


@pytest.mark.parametrize(
    ("tensor", "splits", "words"),
    [
        (torch.empty(5), (), "5 rows, which do not divide by the 4 ranks"),
        (torch.empty(5), (1, 1, 1, 1), "sum to 4"),
        (torch.empty(5), (6, -1, 0, 0), "at least 0"),
        (torch.empty(5), (5,), "1 split sizes, expected 4"),
        (torch.empty(()), (), "no dimension"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tensor, splits, words):
    with pytest.raises(ContractError, match=words):
        split_rows("the input", tensor, splits, 4)


def test_tensors_that_cannot_be_moved_are_refused():
    check_tensor("it", torch.empty(4, 4)[:, 0], written=True)
    check_tensor("it", torch.empty(1).expand(4))
    with pytest.raises(ContractError, match="share one place"):
        check_tensor("it", torch.empty(1).expand(4), written=True)
    with pytest.raises(ContractError, match=r"to_dense\(\)"):
        check_tensor("it", torch.eye(2).to_sparse())
    with pytest.raises(ContractError, match="meta"):
        check_tensor("it", torch.empty(2, device="meta"))
    with pytest.raises(ContractError, match="float32"):
        check_same_dtype("it", torch.empty(1), torch.empty(1, dtype=torch.int32))
    with pytest.raises(ContractError, match=r"has 3 elements, expected 4 \(because\)"):
        check_count("it", 3, 4, "because")


@pytest.mark.parametrize(
    ("reduce", "dtype"),
    [
        ("PREMUL_SUM", torch.float32),
        ("BAND", torch.float32),
        ("AVG", torch.int64),
        ("MAX", torch.complex64),
    ],
)
def test_reduce_ops_that_do_not_exist_for_a_dtype_are_refused(reduce, dtype):
    with pytest.raises(ContractError, match=reduce):
        check_reduce(reduce, dtype)
    check_reduce("SUM", dtype)


def test_a_fingerprint_differs_where_the_calls_do():
    calls = [
        fingerprint("all_reduce", "SUM", torch.float32, (2, 6)),
        fingerprint("all_reduce", "SUM", torch.float32, (3, 4)),
        fingerprint("all_reduce", "MAX", torch.float32, (2, 6)),
        fingerprint("all_reduce", "SUM", torch.int32, (2, 6)),
        fingerprint("broadcast", "", torch.float32, (2, 6), root=0),
        fingerprint("broadcast", "", torch.float32, (2, 6), root=1),
        fingerprint("barrier"),
    ]
    assert len({call.digest for call in calls}) == len(calls)
    assert calls[0].text == "all_reduce(SUM, float32[2, 6])"
    assert calls[0].digest == fingerprint("all_reduce", "SUM", torch.float32, (2, 6)).digest


def test_the_minority_is_named_with_both_calls():
    text = describe_mismatch("group 0", 7, [0, 2, 4, 6], ["a at x.py:1", "a at x.py:2", "b at x.py:3", "a at x.py:1"])
    assert "collective #7; rank 4 differs from the others" in text
    assert "ranks 0, 6: a at x.py:1" in text
    assert "rank 2: a at x.py:2" in text
    assert "rank 4: b at x.py:3" in text
