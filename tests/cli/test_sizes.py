import pytest

from torchtpu_dist.cli.sizes import bytes_text, parse_bytes
from torchtpu_dist.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("1", 1),
        ("17B", 17),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("64MB", 64_000_000),
        ("1GB", 10**9),
        ("1.5GiB", 3 * 2**29),
        ("0.606GB", 606_000_000),
        ("1e9", 10**9),
        ("2.5e3KB", 2_500_000),
        ("1_000_000", 10**6),
        (" 2 TiB ", 2**41),
        ("1000000TB", 10**18),
    ],
)
def test_sizes_are_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a size"),
        ("-3", "is not a size"),
        ("MiB", "is not a size"),
        ("64MiB2", "is not a size"),
        ("1e-3GB", "is not a size"),
        ("64Mib!", "is not a size"),
        ("64PiB", "no unit is called 'PiB'"),
        ("64MBit", "did you mean MB"),
        ("64M", "did you mean MB"),
        ("1.5", "whole number of bytes"),
        ("0.3KiB", "whole number of bytes"),
        ("0", "1 byte to 1 EB"),
        ("1000001TB", "1 byte to 1 EB"),
        ("9e99TiB", "1 byte to 1 EB"),
    ],
)
def test_what_is_no_size_is_refused_in_one_line_with_examples(text, complaint):
    with pytest.raises(RecipeError) as refused:
        parse_bytes(text)
    message = str(refused.value)
    assert complaint in message
    assert "64MiB, 1GB, 1.5GiB or 4096" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (1, "1 B"),
        (4096, "4 KiB"),
        (64 * 2**20, "64 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (10**9, "1 GB"),
        (606_000_000, "606 MB"),
        (25_200_000, "25.2 MB"),
        (9999, "9999 B"),
        (1_234_567, "1.235 MB"),
        (123_456_789_012_345, "123.5 TB"),
    ],
)
def test_sizes_are_said(num_bytes, expected):
    assert bytes_text(num_bytes) == expected


def test_an_exact_text_is_read_back():
    for num_bytes in [*range(1, 3000, 7), *(k * 2**20 for k in range(1, 200)), *(k * 10**8 for k in range(1, 100))]:
        text = bytes_text(num_bytes)
        assert parse_bytes(text) == num_bytes, text
