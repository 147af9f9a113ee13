from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.protocols import Budget
from forerun.drafters.lookup import LookupDrafter

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def reference(text: list[int], most: int, least: int, wanted: int) -> list[int]:
    """By looking everywhere: the longest ending of at most `most` tokens that occurred before, at its latest
    place."""
    for size in range(most, least - 1, -1):
        for place in range(len(text) - 1, size - 1, -1):
            if size < len(text) and text[place - size : place] == text[-size:]:
                longer = list(text)
                for offset in range(wanted):
                    longer.append(longer[place + offset])
                return longer[len(text) :]
    return []


def begun(text: list[int], drafter: LookupDrafter) -> LookupDrafter:
    drafter.begin(np.array(text[:1], dtype=np.int32), None)
    drafter.observe(text[1:], None)
    return drafter


@given(text=texts, most=st.integers(1, 5), least=st.integers(1, 5), wanted=st.integers(1, 12))
def test_against_a_search_of_everything(text: list[int], most: int, least: int, wanted: int) -> None:
    if least > most:
        return
    draft = begun(text, LookupDrafter(most, least)).propose(Budget(wanted, wanted))
    assert draft.tokens.tolist() == [text[-1], *reference(text, most, least, wanted)]
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))


@given(text=texts, length=st.integers(1, 40), more=texts)
def test_truncate_leaves_no_trace(text: list[int], length: int, more: list[int]) -> None:
    drafter = begun(text, LookupDrafter())
    drafter.truncate(length)
    drafter.observe(more, None)
    fresh = begun(text[:length] + more, LookupDrafter())
    assert drafter.propose(Budget(8, 8)).tokens.tolist() == fresh.propose(Budget(8, 8)).tokens.tolist()


def test_begin_forgets() -> None:
    drafter = begun([1, 2, 3, 1, 2], LookupDrafter())
    begun([1, 2], drafter)
    assert len(drafter.propose(Budget(8, 8))) == 1


def test_sizes_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="n-grams"):
        LookupDrafter(2, 3)
