"""A bench's result as one HTML page: no script, nothing loaded from elsewhere, fit for a phone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from forerun.bench.contest import OWN
from forerun.words import counted

STYLE = """
:root { color-scheme: light dark; --bar: #3b7dd8; --other: #9aa3ad; --sim: #b98ad9; --line: #8884; }
body { font: 16px/1.45 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.row { margin: .35rem 0; }
.label { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; font-size: .9rem; }
.label span { overflow-wrap: anywhere; }
.label span:last-child { margin-left: auto; text-align: right; font-variant-numeric: tabular-nums; }
.track { background: var(--line); border-radius: 3px; height: .7rem; }
.bar { height: .7rem; border-radius: 3px; background: var(--bar); min-width: 1px; }
.other { background: var(--other); } .simulated { background: var(--sim); }
.note { font-size: .85rem; opacity: .8; } .bad { color: #c33; font-weight: bold; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .15rem .6rem .15rem 0; text-align: left; }
.wide { overflow-x: auto; }
"""


def html_report(result: Mapping[str, Any]) -> str:
    """The page for what `forerun bench --json` writes."""
    parts = [
        _head(result),
        _speeds(result["runs"]),
        _against(result.get("against_peers") or []),
        _acceptance(result["runs"]),
        _split(result["runs"]),
        _curve(result.get("cost") or []),
        _memory(result.get("memory") or []),
        _facts(result),
    ]
    title = escape(f"forerun bench: {result['model']}")
    return (
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</html>\n"
    )


def contestant(run: Mapping[str, Any]) -> str:
    """How a run is called; the names of simulated drafters say that they are."""
    drafter = "plain" if run["drafter"] == "none" else run["drafter"]
    return f"{run['engine']} {drafter}"


def _bar(label: str, value: str, share: float, kind: str = "") -> str:
    width = max(0.0, min(1.0, share)) * 100
    return (
        f"<div class=row><div class=label><span>{escape(label)}</span><span>{escape(value)}</span></div>"
        f'<div class=track><div class="bar {kind}" style="width:{width:.1f}%"></div></div></div>'
    )


def _kind(run: Mapping[str, Any]) -> str:
    if run.get("simulated"):
        return "simulated"
    return "" if run["engine"] == OWN else "other"


def _head(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    told = (
        f"{machine['processor']}, {result['threads']} of {machine['cores']} cores, "
        f"{machine['memory_gb']} GB; dtype {result['dtype']}; {result['max_tokens']} tokens an answer at most"
    )
    unequal = [contestant(run) for run in result["runs"] if run["engine"] == OWN and not run["equal"]]
    lines = [f"<p>{escape(told)}</p>"]
    if unequal:
        lines.append(f"<p class=bad>Text differs from plain decoding: {escape(', '.join(unequal))}</p>")
    else:
        lines.append("<p>Every text of forerun is the one that plain decoding wrote.</p>")
    if not result["complete"]:
        lines.append("<p class=bad>The bench was interrupted: these are the answers until then.</p>")
    return "\n".join(lines)


def _speeds(runs: Sequence[Mapping[str, Any]]) -> str:
    lines = ["<h2>Tokens a second</h2>"]
    for workload, temperature in dict.fromkeys((run["workload"], run["temperature"]) for run in runs):
        here = [r for r in runs if (r["workload"], r["temperature"]) == (workload, temperature)]
        most = max(run["tokens_per_second"] for run in here) or 1.0
        lines.append(f"<h3>{escape(str(workload))}, temperature {temperature:g}</h3>")
        for run in sorted(here, key=lambda run: -run["tokens_per_second"]):
            speed = run["tokens_per_second"]
            value = f"{speed:.0f} ({run['tokens_per_second_p10']:.0f}-{run['tokens_per_second_p90']:.0f})"
            value += f", {run['speedup']:.2f}x"
            if not run["equal"]:
                value += ", differs from its plain text"
            lines.append(_bar(contestant(run), value, speed / most, _kind(run)))
    if any(run.get("simulated") for run in runs):
        lines.append(
            "<p class=note>simulated: the drafter was told the answer, and guesses right with the "
            "probability in its name; what it gives is no measurement of a drafter.</p>"
        )
    lines.append(
        "<p class=note>Medians over answers of decoding speed, reading the prompt apart (10th to 90th "
        "percentile); x is the median over prompts of the speed over forerun's plain decoding.</p>"
    )
    return "\n".join(lines)


def _against(found: Sequence[Mapping[str, Any]]) -> str:
    """The fastest drafter of each workload over each other engine's faster mode."""
    if not found:
        return ""
    rows = [
        [
            one["workload"],
            contestant({"engine": OWN, "drafter": one["drafter"]}),
            f"{one['speedup']:.2f}x",
            contestant({"engine": one["peer"], "drafter": one["peer_drafter"]}),
        ]
        for one in found
    ]
    return "<h2>Against the best of others, temperature 0</h2>\n" + _table(["workload", "", "", "over"], rows)


def _acceptance(runs: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for run in runs:
        if run["acceptance_by_depth"]:
            length = run["mean_accepted_length"]
            name = f"{run['workload']}, {contestant(run)}, temperature {run['temperature']:g}"
            lines.append(f"<h3>{escape(name)}: {length:.2f} tokens a forward</h3>")
            lines += [
                _bar(f"depth {depth}", f"{rate:.0%}", rate, _kind(run))
                for depth, rate in enumerate(run["acceptance_by_depth"], start=1)
            ]
    if not lines:
        return ""
    note = "<p class=note>How often a guess was right where the guess before it was.</p>"
    return "\n".join(["<details><summary><b>Acceptance by depth</b></summary>", note, *lines, "</details>"])


def _split(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for run in runs:
        seconds = {name: part for name, part in run["seconds"].items() if name != "prompt"}
        whole = sum(seconds.values())
        if whole:
            shares = [f"{part / whole:.1%}" for part in seconds.values()]
            rows.append([run["workload"], contestant(run), f"{run['temperature']:g}", *shares])
    if not rows:
        return ""
    names = ["workload", "", "T", "draft", "verify", "choose", "other"]
    return "<h2>Where the time goes</h2>\n" + _table(names, rows)


def _curve(points: Sequence[Mapping[str, Any]]) -> str:
    if not points:
        return ""
    most = max(point["ms"] for point in points)
    bars = [
        _bar(counted(p["n"], "token"), f"{p['ms']:.2f} ms, {p['ms'] / points[0]['ms']:.2f}x", p["ms"] / most)
        for p in points
    ]
    return "\n".join(["<h2>Cost of a forward</h2>", *bars])


def _memory(shares: Sequence[Mapping[str, Any]]) -> str:
    if not shares:
        return ""
    most = max(share["bytes"] for share in shares) or 1
    bars = [
        _bar(s["name"], f"{s['bytes'] / 1e6:,.0f} MB", s["bytes"] / most, "" if s["own"] else "other")
        for s in shares
    ]
    return "\n".join(["<h2>Memory</h2>", *bars])


def _facts(result: Mapping[str, Any]) -> str:
    rows = [[name, str(value)] for name, value in {**result["machine"], **result["versions"]}.items()]
    rows.append(["command", result["command"]])
    return "<h2>Machine and versions</h2>\n" + _table([], rows)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in header)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<div class=wide><table>\n<tr>{head}</tr>\n{body}\n</table></div>"
