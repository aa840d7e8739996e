"""What is shown of a model's text."""

from torchtpu_dist.training.sample import printable


def test_control_characters_are_written_out():
    assert printable("é = 'ok'\x1b[31m\t\x00") == "é = 'ok'\\x1b[31m\\t\\x00"
