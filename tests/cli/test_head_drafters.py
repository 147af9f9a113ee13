"""Drafting with heads from the command line, and pictures of the trees."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from forerun.cli.pictures import Picture, as_svg, as_text
from forerun.core.tree import DraftTree
from forerun.models import hub
from forerun.roster import split_cascade, split_list
from support.heads import Sizes, TinyHead
from support.program import error_line, forerun, process
from support.tiny import vocabulary, write_tiny_hf

VOCAB = len(vocabulary())


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("heads")

    def sizes(hidden: int = 256) -> Sizes:
        return Sizes(target=hidden, hidden=hidden, vocab=VOCAB, outputs=100)

    sizes().eagle3().save(root / "eagle3")
    sizes().medusa().save(root / "medusa")
    sizes().hydra(small=True).save(root / "hydra")
    sizes(64).eagle3(embedding=True).save(root / "narrow")
    other = sizes().hydra()
    TinyHead({**other.config, "hydra_head_arch": "prefix-mlp"}, other.arrays).save(root / "prefix")
    return root


def answer(tiny: Path, *options: object) -> dict[str, object]:
    done = process(
        "generate", "hello there", "-m", tiny, "--raw", "--max-tokens", 30, "--ignore-end", "--json",
        "--draft-tokens", 6, *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "name",
    ["head:{}/eagle3", "{}/medusa", "suffix,eagle3:{}/eagle3", "suffix+{}/eagle3", "suffix+hydra:{}/hydra"],
)
def test_the_text_is_the_models(tiny: Path, heads: Path, name: str) -> None:
    options = ("--temperature", 0.8, "--seed", 5)
    plain = answer(tiny, "--drafter", "none", *options)
    drafted = answer(tiny, "--drafter", name.format(heads), *options)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["report"] != plain["report"]  # something was drafted


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("head:{}/narrow", "whose hidden size is 256"),
        ("medusa:{}/eagle3", "is of the family eagle3"),
        ("hydra:{}/medusa", "is of the family medusa"),
        ("medusa:{}/hydra", "write hydra:"),
        ("hydra:{}/prefix", "holds Hydra++ heads (prefix-mlp)"),
        ("head:", "needs a head"),
        ("head:{}/nothing", "there is no drafting head"),
        ("head:{}", "config.json"),
    ],
)
def test_what_does_not_fit_is_refused(tiny: Path, heads: Path, name: str, why: str) -> None:
    done = process("generate", "hello", "-m", tiny, "--drafter", name.format(heads))
    assert done.returncode == 2
    assert why in error_line(done)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("medusa:{}/hydra", "write hydra:"),
        ("eagle:{}/eagle3", "write eagle3:"),
        ("draft:{}/hydra", "holds a drafting head, not a whole model"),
        ("head:{tiny}", "model, not a drafting head"),
    ],
)
def test_a_name_says_what_is_behind_it(tiny: Path, heads: Path, name: str, why: str) -> None:
    """The same to every command."""
    name = name.format(heads, tiny=tiny)
    for command in (
        ("generate", "hello", "-m", tiny, "--drafter", name),
        ("plan", "-m", tiny, "--drafter", name, "--context", 64),
        ("inspect", name),
        ("inspect", name, "--target", tiny),
    ):
        done = process(*command)
        assert done.returncode == 2, command
        assert why in error_line(done)


@pytest.mark.parametrize("name", ["a,b", "c+suffix", 'd"e', "f: g", " h", '"i"'])
def test_inspect_takes_the_name_that_it_shows(name: str, tiny: Path, tmp_path: Path) -> None:
    folder = Sizes(target=256, hidden=256, vocab=VOCAB, outputs=100).hydra(small=True).save(tmp_path / name)
    for named in (folder, f"head:{folder}", f"hydra:{folder}"):
        done = forerun("inspect", named, "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)["drafter"]
        assert forerun("inspect", shown, "--target", tiny).returncode == 0, shown


@pytest.mark.parametrize("family", ["head", "eagle3", "medusa", "draft"])
def test_what_is_not_there_is_called_what_it_should_be(
    tiny: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_fetched", lambda model: pytest.fail("fetched"))  # no head would come of it
    what, there = "drafting head", "smollm2-135m/eagle3, smollm2-135m/hydra, smollm2-135m/medusa"
    if family == "draft":
        what, there = "draft model", "smollm2-135m, smollm2-135m/draft"
    for command in (
        ("generate", "hi", "-m", tiny, "--drafter"),
        ("plan", "-m", tiny, "--drafter"),
        ("inspect",),
    ):
        said = error_line(forerun(*command, f"{family}:nothing"))
        assert f"there is no {what} 'nothing': name " in said
        assert said.endswith(there)
        if family != "draft":
            said = error_line(forerun(*command, f"{family}:smollm2-135m"))
            assert said == f"the package has no drafting head 'smollm2-135m'; it has {there}"


def test_a_folder_by_its_name_alone(tiny: Path, heads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(heads)
    for names in ("narrow", "suffix,narrow"):
        done = forerun("generate", "hello", "-m", tiny, "--drafter", names)
        assert done.returncode == 2
        assert "there is no drafter 'narrow'; for the head of this name write head:narrow" in error_line(done)


@pytest.mark.parametrize("family", ["eagle", "eagle3", "medusa", "hydra"])
def test_a_head_is_no_model(tiny: Path, tmp_path: Path, family: str) -> None:
    sizes = Sizes(target=256, hidden=256, vocab=VOCAB, outputs=100)
    folder = getattr(sizes, family)().save(tmp_path / "h")
    for command in (
        ("generate", "hello", "-m", tiny, "--drafter", f"draft:{folder}"),
        ("generate", "hello", "-m", folder),
        ("plan", "-m", folder),
        ("plan", "-m", tiny, "--drafter", f"draft:{folder}"),
    ):
        done = forerun(*command)
        assert done.returncode == 2
        assert f"drafter head:{folder}" in error_line(done)


def test_a_model_is_no_head(tiny: Path, tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "model")
    for model in (tiny, folder):
        for command in (("generate", "hello"), ("plan",)):
            done = forerun(*command, "-m", tiny, "--drafter", f"eagle3:{model}")
            assert done.returncode == 2
            assert f"write draft:{model}" in error_line(done)


def test_folders_in_cascades(heads: Path) -> None:
    folder = heads / "a+b" / "c"
    Sizes().eagle3().save(folder)
    one, other = f"{heads}/eagle3", str(folder)
    assert split_cascade(f"suffix + {other}") == ["suffix", other]
    assert split_cascade(f"{one}+{other}+lookup,skip:2") == [one, other, "lookup", "skip:2"]
    assert split_cascade(f"draft:/c++/x.gguf,{other}") == ["draft:/c++/x.gguf", other]
    assert split_cascade("suffix+/no/such/head") == ["suffix", "/no/such/head"]
    assert split_cascade("draft:/no/c++/such") == ["draft:/no/c++/such"]


@pytest.mark.parametrize("options", [(), ("--memory", "1GB")])
def test_a_folder_with_a_comma_in_its_name(tiny: Path, heads: Path, options: tuple[object, ...]) -> None:
    folder = heads / "a,b, c" / "head"
    Sizes(target=256, hidden=256, vocab=VOCAB, outputs=100).eagle3().save(folder)
    given = f"suffix,head:{folder}"
    assert split_cascade(f"{folder}, {given} + lookup") == [str(folder), "suffix", f"head:{folder}", "lookup"]
    assert split_cascade("head:/no/such,draft:/a,lookup") == ["head:/no/such", "draft:/a", "lookup"]
    options = ("hello", "-m", tiny, "--raw", "--max-tokens", "4", *options)
    done = forerun("generate", *options, "--drafter", given)
    assert done.returncode == 0, done.stderr


def test_commas_in_the_folders_of_a_list(tiny: Path, heads: Path) -> None:
    folder = heads / "d,e" / "head"
    Sizes(target=256, hidden=256, vocab=VOCAB, outputs=100).eagle3().save(folder)
    given = f"lookup, {folder},suffix+head:{folder}+lookup,skip:1+{folder}"
    members = ["lookup", f'"{folder}"', f'suffix,head:"{folder}",lookup', f'skip:1,"{folder}"']
    assert split_list("--drafters", given) == members
    assert split_list("--drafters", "head:/no/such,skip:1+/a,lookup") == [
        "head:/no/such",
        "skip:1,/a",
        "lookup",
    ]

    names = ["lookup", f'head:"{folder}"', f'suffix+head:"{folder}"']
    asked = ",".join(names).replace('"', "")
    options = ("-m", tiny, "--max-tokens", 4, "--json")
    done = forerun("bench", *options, "--prompts", 1, "--workloads", "json", "--drafters", asked)
    assert done.returncode == 0, done.stderr
    assert [run["drafter"] for run in json.loads(done.stdout)["runs"]] == [
        "none", *names[:2], f'suffix,head:"{folder}"',
    ]  # fmt: skip
    done = forerun("verify", *options, "--limit", 1, "--temperature", 0, "--drafter", asked)
    assert done.returncode == 0, done.stderr
    assert [run["drafter"] for run in json.loads(done.stdout)["comparisons"]] == names
    done = forerun("tune", "-m", tiny, "--threads", 1, "--drafters", f"{asked},oracle")
    assert "no drafter 'oracle'" in error_line(done)


def test_a_tree_is_shown(tiny: Path, heads: Path, tmp_path: Path) -> None:
    options = ("generate", "hello", "-m", tiny, "--raw", "--max-tokens", 12, "--ignore-end")
    options = (*options, "--drafter", heads / "eagle3", "--draft-tokens", 6)
    shown = process(*options, "--show-tree").stderr.decode()
    assert "6 guesses checked in one forward" in shown
    assert process(*options, f"--show-tree={tmp_path}/tree.svg").returncode == 0
    assert ElementTree.parse(tmp_path / "tree.svg").getroot().tag.endswith("svg")
    assert "ends in .svg" in error_line(process(*options, "--show-tree", "hello"))
    refused = forerun(*options, "--show-tree=/nowhere/tree.svg")
    assert (refused.returncode, refused.stdout) == (2, b"")  # known before anything is written
    assert "cannot write /nowhere/tree.svg" in error_line(refused)
    assert b"no tree was drafted" in forerun(*options, "--show-tree", "--drafter", "none").stderr


def test_pictures_say_what_was_accepted() -> None:
    tree = DraftTree(
        np.array([0, 1, 2, 3, 4]), np.array([-1, 0, 1, 0, 1]), chances=np.array([1, 0.6, 0.4, 0.3, 0.1], "f4")
    )
    picture = Picture(tree, (0, 1, 2), 5)
    text = as_text(picture, lambda token: ["a", " b", "<c>", "\x1b", "é", "\n"][token])
    assert text.splitlines()[1:] == [
        "*a",
        "├─ *·b 0.60",
        "│  ├─ *<c> 0.40",
        "│  └─  é 0.10",
        "└─  ? 0.30",
        "then the model itself said \\n",
    ]
    assert "4 guesses checked in one forward, 2 of them right" in text
    drawn = ElementTree.fromstring(as_svg(picture, lambda token: "abcdef"[token] * token))
    labels = [(part.text, part.get("font-weight")) for part in drawn if part.tag.endswith("text")]
    assert labels == [
        ("''", "bold"),
        ("b 0.60", "bold"),
        ("cc 0.40", "bold"),
        ("ddd 0.30", "normal"),
        ("eeee 0.10", "normal"),
    ]
