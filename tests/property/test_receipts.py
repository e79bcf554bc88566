"""Laws of receipts: boots count once in any order, and no number of them grows beyond the bound."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ballonet.engines.vllm_written import Limits
from ballonet.planning.receipts import MAX_BYTES, NO_RECEIPTS, Boot, Receipt, Receipts
from tests.boots import boot, kept

BOOTS = st.lists(
    st.builds(
        lambda number, size, device: boot(number, size, device=device),
        st.integers(0, 14),
        st.integers(1, 2**40),
        st.sampled_from(["a", "b"]),
    ),
    max_size=12,
    unique_by=lambda one: one.mark,
)


@given(BOOTS, st.randoms(use_true_random=False))
def test_the_order_of_boots_and_how_often_each_is_told_do_not_matter(
    boots: list[Boot], random: Any
) -> None:
    again = [*boots, *boots]
    random.shuffle(again)
    assert kept(*again) == kept(*boots)
    assert sum(receipt.boots for receipt in kept(*boots).all) == len(boots)


@given(BOOTS, BOOTS)
def test_to_take_in_receipts_twice_changes_nothing(first: list[Boot], second: list[Boot]) -> None:
    one, other = kept(*first), kept(*second)
    both = one.with_receipts(other)
    assert both.with_receipts(other) == both
    assert both.with_receipts(one) == both
    assert other.with_receipts(one) == both


@settings(max_examples=10)
@given(st.randoms(use_true_random=False), st.integers(600, 1200))
def test_no_number_of_boots_takes_more_than_the_bound(random: Any, number: int) -> None:
    boots = [
        boot(
            random.randrange(40_000),
            configuration=random.choice("aaab") * 16,
            limits=Limits(random.randrange(1, 2000), 8, 8192),
        )
        for _ in range(number)
    ]
    receipts = NO_RECEIPTS.joined(
        map(Receipt.of, boots), lambda one, other: one.boots + other.boots
    )
    assert len(receipts.text().encode()) <= MAX_BYTES
    assert Receipts.read(receipts.text()) == receipts
