from decimal import Decimal

import pytest

from ballonet.api.quantity import parse_quantity, quantity_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (0, 0),
        ("500m", Decimal("0.5")),
        ("1.5Gi", 1610612736),
        (".5Ki", 512),
        ("1.", 1),
        ("61Gi", 65498251264),
        ("61G", 61_000_000_000),
        ("+1k", 1000),
        ("-1Ki", -1024),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("100n", Decimal("0.0000001")),
        ("3u", Decimal("0.000003")),
    ],
)
def test_quantities_have_the_value_that_kubernetes_gives_them(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 Gi", " 1Gi", "1Gi\n", "Gi", "1GiB", "1gi", "0x10", "1e", "--1", "1,5Gi", "∞", "٣"],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="8Gi"):
        parse_quantity(text)


def test_a_huge_text_is_refused_without_being_repeated():
    with pytest.raises(ValueError) as caught:
        parse_quantity("9" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("text", "whole"), [("1", 1), ("500m", 1), ("1.5", 2), ("1.1Ki", 1127)])
def test_bytes_are_rounded_up(text, whole):
    assert quantity_bytes(text) == whole


@pytest.mark.parametrize("text", ["0", 0, "-1Gi", "0.0"])
def test_bytes_are_more_than_zero(text):
    with pytest.raises(ValueError, match="more than zero"):
        quantity_bytes(text)
