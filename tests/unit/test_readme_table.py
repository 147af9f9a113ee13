"""The README's table of results is what the kept benches say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "scripts/readme_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept() -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks").glob("results-*.json"))]


def test_the_table_is_that_of_the_files(script: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    assert kept()
    assert script.with_tables(readme, kept()) == readme, "run python scripts/readme_table.py"


def test_losses_are_in_it(script: ModuleType) -> None:
    """Every run is, simulated ones apart, whatever came of it."""
    for result in kept():
        runs = [run for run in result["runs"] if not run["simulated"]]  # type: ignore[attr-defined]
        text = "\n".join(script.table(result))
        assert all(f"{run['tokens_per_second']:.0f} ({run['speedup']:.2f}x)" in text for run in runs)
        assert all(run["equal"] for run in runs if run["engine"] == "forerun")
