"""Writes the README's table of results from the benches that are kept in benchmarks/.

    python scripts/readme_table.py            # rewrite the README
    python scripts/readme_table.py --check    # exit 1 if that would change it

A result is made with `forerun bench --json benchmarks/results-NAME.json`; its command is in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- results: written by scripts/readme_table.py -->", "<!-- end of results -->"
NAMES = {"none": "plain", "lookup": "lookup", "auto": "auto"}


def column(run: Mapping[str, Any]) -> str:
    """The head of a run's column."""
    return f"{run['engine']} {NAMES.get(run['drafter'], run['drafter'])}"


def cell(run: Mapping[str, Any] | None) -> str:
    """A run's speed, how many times forerun's plain decoding that is, and a star if the text is not the same
    engine's plain text."""
    if run is None:
        return ""
    return f"{run['tokens_per_second']:.0f} ({run['speedup']:.2f}x)" + ("" if run["equal"] else " *")


def table(result: Mapping[str, Any]) -> list[str]:
    """One bench in lines: a row for each workload and temperature, a column for each contestant."""
    runs = [run for run in result["runs"] if not run["simulated"]]
    columns = list(dict.fromkeys(column(run) for run in sorted(runs, key=lambda r: r["engine"] != "forerun")))
    rows = list(dict.fromkeys((run["workload"], run["temperature"]) for run in runs))
    by_place = {(run["workload"], run["temperature"], column(run)): run for run in runs}
    machine, versions = result["machine"], result["versions"]
    peers = {name: version for name, version in versions.items() if name not in ("forerun", "python")}
    others = "".join(f"; {name} {version}" for name, version in peers.items())
    own = [run for run in runs if run["engine"] == "forerun"]
    fine = all(run["equal"] for run in own)
    equal = "every text of forerun's is plain decoding's" if fine else "SOME TEXTS ARE NOT PLAIN DECODING'S"
    starred = any(not run["equal"] for run in runs)
    prompts = max(run["prompts"] for run in runs)
    return [
        f"`{result['model']}` on {result['threads']} cores of an {machine['processor']} "
        f"({machine['kernels']}), at most {prompts} prompts a kind, {result['max_tokens']} tokens"
        f"{others}; {equal}. Made with `{result['command']}`.",
        "",
        "| tokens/s (over plain) | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {workload}, T = {temperature:g} | "
            + " | ".join(cell(by_place.get((workload, temperature, name))) for name in columns)
            + " |"
            for workload, temperature in rows
        ),
        "",
        *(["\\* Its text differs from what the same engine writes plainly.", ""] if starred else []),
    ]


def with_tables(readme: str, results: Sequence[Mapping[str, Any]]) -> str:
    """The README's text with the tables of these results between its two marks."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    lines = [line for result in results for line in table(result)]
    return "\n".join([before + BEGIN, "", *lines, END]) + after


def main() -> None:
    results = [json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks").glob("results-*.json"))]
    old = README.read_text()
    new = with_tables(old, results)
    if "--check" in sys.argv[1:]:
        sys.exit(old != new)
    README.write_text(new)


if __name__ == "__main__":
    main()
