"""Lists as users write them, on the command line and as drafters by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.errors import InputError
from forerun.lists import quoted, split_items, unquoted
from forerun.roster import check_names, join_cascade, split_cascade, split_list
from support.heads import Sizes

ODD = ("a,b", "c+suffix,d", "e=f", "g:h", "i j", " k ", 'l"m', "skip:1", "n,", "+o", "none,p+q", '"', "r\\s")
"""Names that a folder may have."""


def test_items() -> None:
    assert split_items("it", " a, b c ,a,d") == ["a", "b c", "d"]
    assert split_items("it", 'x:"a,b", "c"",""d" , "e"') == ["x:a,b", 'c","d', "e"]
    assert split_items("it", 'a"b,c"') == ['a"b', 'c"']  # a quote within an item is a quote
    there = {"a,b", "a,b,c", "d"}
    assert split_items("it", "a,b,c,d,e,a,b", there=there.__contains__) == ["a,b,c", "d", "e", "a,b"]
    assert split_items("it", '"a",b,c', there=there.__contains__) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names nothing"),
        (" , ", "names nothing"),
        ("a,,b", "has an empty item"),
        ("a,", "has an empty item"),
        (',"a"', "has an empty item"),
        ('a,""', "has an empty item"),
        ('a,"b', "has a quote that is not closed"),
        ('x:"b"c,d', "goes on behind one that is"),
        ("a," * 5000, "is too long"),
    ],
)
def test_no_list(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        split_items("--it", text)
    assert str(caught.value).startswith("--it ")


@pytest.mark.parametrize("name", ODD)
def test_any_folder_in_a_cascade(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "head"
    Sizes().eagle3().save(folder)
    head = f"head:{folder}"
    whole = ["suffix", head, f"draft:{folder}", "skip:2"]
    assert split_cascade(join_cascade(whole)) == whole
    assert check_names(join_cascade(["lookup", str(folder)])) == ["lookup", head]
    assert check_names(f"{quoted(head)} + lookup") == [head, "lookup"]
    assert split_list("--it", f"{quoted(head)}+suffix,{quoted(str(folder), always=True)}") == [
        join_cascade([head, "suffix"]),
        join_cascade([str(folder)]),
    ]
    assert check_names(f"suffix,{folder}") == ["suffix", head]  # what is there needs no quotes


@pytest.mark.parametrize("name", ODD)
def test_any_folder_that_is_not_there(name: str) -> None:
    whole = ["suffix", f"head:/no/{name}/head", f"draft:{name}"]
    assert split_cascade(join_cascade(whole)) == whole
    assert check_names(join_cascade(whole)) == whole


def test_quotes_say_what_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a,suffix", "a+suffix"):
        Sizes().eagle3().save(tmp_path / name)
    assert check_names("head:a,suffix") == ["head:a,suffix"]  # the longest that is there
    assert check_names('head:"a",suffix') == ["head:a", "suffix"]
    assert check_names('head:"a"+suffix') == ["head:a", "suffix"]
    assert split_cascade(join_cascade(["head:a", "suffix"])) == ["head:a", "suffix"]


def test_paths_that_are_not_there_are_told(tmp_path: Path) -> None:
    for names in ("head:/no/a,b/head", f"suffix+{tmp_path}/none"):
        with pytest.raises(InputError, match=r'there is no drafter .*"quotes" around a path'):
            check_names(names)
    assert split_cascade("draft:/no/c++/x.gguf+suffix") == ["draft:/no/c++/x.gguf", "suffix"]
    with pytest.raises(InputError, match="no drafter"):
        check_names(f"suffix,{os.sep}a\0b")


def test_a_drafter_that_is_named_twice_is_taken_once() -> None:
    assert check_names("suffix, lookup,suffix+auto") == ["suffix", "lookup"]
    assert check_names("none,none") == ["none"]
    assert split_list("--drafters", "suffix+suffix,lookup+suffix,suffix") == ["suffix", "lookup,suffix"]


@pytest.mark.parametrize("name", ODD)
def test_a_name_without_its_quotes(name: str) -> None:
    assert unquoted(quoted(f"head:{name}")) == unquoted(f"head:{name}") == f"head:{name}"
    assert unquoted(quoted(name, always=True)) == name
