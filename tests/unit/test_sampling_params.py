from __future__ import annotations

import dataclasses

import pytest

from forerun.errors import InputError
from forerun.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", None),
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 1.01),
        ("seed", -1),
        ("seed", 2**64),
        ("repetition_penalty", 0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", None),
        ("logit_bias", {3: float("nan")}),
        ("banned_tokens", [3]),
        ("allowed_tokens", [3]),
        ("stop", "END"),
        ("stop", ("",)),
        ("stop_tokens", [1]),
        ("acceptance", "typical"),
        ("logprobs", -1),
    ],
)
def test_out_of_range(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_defaults_are_greedy_and_every_field_is_documented() -> None:
    params = SamplingParams()
    assert params.temperature == 0
    for field in dataclasses.fields(params):
        assert f"\n        {field.name}: " in (SamplingParams.__doc__ or "")
