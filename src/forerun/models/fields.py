"""Numbers out of files, each believed only within its range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.errors import InputError


@dataclass(frozen=True)
class Fields:
    """Checked access to a mapping that came out of a file.

    values: config.json's object, or GGUF's key-value pairs
    source: the file, for messages
    prefix: put before every key (GGUF's are led by the architecture's name)
    """

    values: Mapping[str, object]
    source: str
    prefix: str = ""

    def has(self, key: str) -> bool:
        """Whether the key is there with a value. JSON's null counts as absent."""
        return self.get(key) is not None

    def get(self, key: str) -> object:
        """The unchecked value, or None. An array of equal numbers (GGUF may give one a layer) is one."""
        value = self.values.get(self.prefix + key)
        if isinstance(value, np.ndarray):
            if value.size == 0 or (value != value[0]).any():
                raise self.fault(key, "differs between layers, which is not supported")
            return value[0].item()
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number, low <= value <= high. Without a default the key must be there."""
        value = self._given(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self.fault(key, f"is {value!r}, not a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number, low <= value <= high. Without a default the key must be there."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(key, f"is {value!r}, not a number")
        if not low <= value <= high or not math.isfinite(value):
            raise self.fault(key, f"is {value!r}, not a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, f"is {value!r}, neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without a default the key must be there."""
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self.fault(key, f"is {value!r}, not text")
        return value

    def fault(self, key: str, what: str) -> InputError:
        """An error about one key's value."""
        return InputError(f"{self.source}: {self.prefix + key} {what}")

    def _given(self, key: str, default: object) -> object:
        """The unchecked value, or the default; without one the key must be there."""
        value = self.get(key)
        if value is None and default is None:
            raise InputError(f"{self.source} has no {self.prefix + key}; fetch or convert the model again")
        return default if value is None else value
