"""Damage small models, tokenizers and drafting heads, thousands of ways, and open what is left.

    python scripts/fuzz_headers.py [--cases 4000] [--seed 0] [--load] [--keep FOLDER]

What is damaged is the files' headers, and their JSON. Every case must end in a model or a head, all of whose
bytes can be read, or a tokenizer that can be used, or in an InputError of one line. Anything else is a
finding: another exception, a warning, a case that takes more than five seconds of a processor, or a large
allocation (the address space is limited). With --load, models that open are also handed to the CPU backend;
scripts/sanitize.sh does that with a C++ core built with AddressSanitizer.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit"))

import gguf
from small_models import add_tensors, finish, gguf_writer, shapes, write_folder

from forerun import text
from forerun.cli.progress import LateProgress
from forerun.errors import InputError
from forerun.models.checkpoint import Checkpoint, open_checkpoint
from forerun.models.heads import open_head
from forerun.text.chat import render
from support.head_files import write_head_file
from support.heads import Sizes
from support.tiny import Tiny, write_tiny_gguf, write_tiny_hf

PATIENCE = 5  # seconds of processor time a case may take
ADDRESS_SPACE = 6 << 30  # bytes
NUMBERS = [0, 1, 2, 3, 7, 8, 9, 13, 31, 32, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32]
NUMBERS += [1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8]
VALUES: list[object] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    1 << 31,
    1 << 63,
    10**40,
    0.5,
    -0.0,
    1e308,
    float("nan"),
]
VALUES += [
    float("inf"),
    "",
    "x",
    "4",
    "\x1b[2J\n",
    [],
    [1],
    [-1],
    [None],
    {},
    {"type": "linear"},
    [[[]]],
    "silu",
]


@dataclass(frozen=True)
class Subject:
    """What is whole: a "model" or a "head" to open, or a "tokenizer" to use (`what`); `model` is its file or
    folder, `target` the file to damage in its first `header` bytes."""

    name: str
    model: Path
    target: Path
    header: int
    what: str = "model"


def flip(raw: bytearray, at: random.Random) -> bytearray:
    for _ in range(at.choice([1, 1, 2, 8])):
        raw[at.randrange(len(raw))] ^= 1 << at.randrange(8)
    return raw


def number(raw: bytearray, at: random.Random) -> bytearray:
    value, size = at.choice([*NUMBERS, len(raw)]), at.choice([4, 8])
    place = at.randrange(max(1, len(raw) - size))
    raw[place : place + size] = struct.pack("<Q", value)[:size]
    return raw


def noise(raw: bytearray, at: random.Random) -> bytearray:
    place, size = at.randrange(len(raw)), at.choice([1, 4, 16, 200])
    raw[place : place + size] = at.randbytes(size)
    return raw


def cut(raw: bytearray, at: random.Random) -> bytearray:
    place = at.randrange(len(raw))
    del raw[place : place + at.choice([1, 4, 8, 100])]
    return raw


def double(raw: bytearray, at: random.Random) -> bytearray:
    place, size = at.randrange(len(raw)), at.choice([1, 4, 8, 32, 300])
    raw[place:place] = raw[place : place + size]
    return raw


def swap(raw: bytearray, at: random.Random) -> bytearray:
    size = at.choice([4, 8, 16])
    one, two = (at.randrange(max(1, len(raw) - size)) for _ in range(2))
    raw[one : one + size], raw[two : two + size] = raw[two : two + size], raw[one : one + size]
    return raw


def field(raw: bytearray, at: random.Random) -> bytearray:
    """Another number in what follows a GGUF key or tensor name, with all else in its place."""
    match = at.choice(list(re.finditer(rb"[a-z_0-9]+(?:\.[a-z_0-9]+)+", raw)))
    size = at.choice([4, 8])
    place = min(match.end() + at.choice([0, 4, 4, 4, 8, 12, 16, 20, 24]), len(raw) - size)
    raw[place : place + size] = struct.pack("<Q", at.choice([*NUMBERS, at.randrange(1000)]))[:size]
    return raw


def digits(raw: bytearray, at: random.Random) -> bytearray:
    """Another number, or another word, where the text of a JSON header has one."""
    found = list(re.finditer(rb"\d+|\"[A-Za-z0-9_.]+\"", raw))
    if not found:
        return flip(raw, at)
    match = at.choice(found)
    other = at.choice(
        [str(at.choice(NUMBERS)).encode(), at.choice(found)[0], b"-1", b"null", b"1e400", b"[]", b'""']
    )
    raw[match.start() : match.end()] = other
    return raw


def member(raw: bytearray, at: random.Random) -> bytearray:
    """A JSON object with one member changed, removed, or given another's value."""
    try:
        value = json.loads(raw)
    except ValueError:
        return flip(raw, at)
    inner = value
    for _ in range(3):
        nested = [item for item in inner.values() if isinstance(item, dict) and item]
        if nested and at.random() < 0.7:
            inner = at.choice(nested)
    if not inner:
        return raw
    key = at.choice(list(inner))
    change = at.randrange(4)
    if change == 0:
        del inner[key]
    elif change == 1:
        inner[key] = inner[at.choice(list(inner))]
    else:
        inner[key] = at.choice(VALUES)
    return bytearray(json.dumps(value).encode())


Mutation = Callable[[bytearray, random.Random], bytearray]
BINARY: list[Mutation] = [flip, flip, number, field, field, field, noise, cut, double, swap]
TEXT: list[Mutation] = [flip, noise, cut, double, digits, digits, member, member]


def subjects(folder: Path) -> list[Subject]:
    """The models to damage, written by the formats' own libraries."""
    found: list[Subject] = []
    for family, kind in (("llama", "Q4_0"), ("llama", "Q6_K"), ("qwen2", "Q4_K"), ("qwen3", "Q5_1")):
        path = folder / f"{family}-{kind}.gguf"
        writer = gguf_writer(path, family)
        add_tensors(writer, shapes(family, tied=True), kind)
        if family == "llama":
            writer.add_tensor("rope_freqs.weight", np.ones(32, np.float32))
            writer.add_array("general.tags", ["a", "b"])
            writer.add_bool("tokenizer.ggml.add_bos_token", True)
        finish(writer)
        found.append(Subject(path.stem, path, path, gguf_header(path)))
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    for family in ("llama", "qwen3"):
        model = write_folder(
            folder / family, family, tied=True, kind="BF16", config={"rope_scaling": scaling}
        )
        found += [weights(family, model), whole(family, model, "config.json")]
    model = write_folder(folder / "shards", "qwen2", tied=True, kind="F16", shards=3)
    (model / "generation_config.json").write_text('{"eos_token_id": [2, 3], "temperature": 0.6}')
    found += [
        whole("shards", model, name) for name in ("model.safetensors.index.json", "generation_config.json")
    ]
    tiny = Tiny(hidden=64, inner=64, heads=2, kv_heads=1, head_dim=32, layers=1)
    path = write_tiny_gguf(folder / "tokenizer.gguf", tiny)
    found.append(Subject(path.stem, path, path, gguf_header(path), "tokenizer"))
    model = write_tiny_hf(folder / "tokenizer", tiny)
    found += [whole("tokenizer", model, f"tokenizer{end}.json", "tokenizer") for end in ("", "_config")]
    for name, head in (("eagle3", Sizes().eagle3(embedding=True)), ("medusa", Sizes().vllm_medusa())):
        model = head.save(folder / name)
        found += [weights(name, model, "head"), whole(name, model, "config.json", "head")]
    sizes = Sizes()
    path = write_head_file(folder / "head.gguf", sizes, sizes.eagle3(embedding=True, taps=(2, 1, 0)))
    found.append(Subject(path.stem, path, path, gguf_header(path), "head"))
    return found


def gguf_header(path: Path) -> int:
    return min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)


def weights(name: str, model: Path, what: str = "model") -> Subject:
    file = model / "model.safetensors"
    (length,) = struct.unpack("<Q", file.read_bytes()[:8])
    return Subject(f"{name}/{file.name}", model, file, 8 + length, what)


def whole(name: str, model: Path, file: str, what: str = "model") -> Subject:
    return Subject(f"{name}/{file}", model, model / file, (model / file).stat().st_size, what)


def damaged(subject: Subject, pristine: bytes, at: random.Random) -> bytes:
    """A copy of a file with its header changed once or a few times, or cut off anywhere."""
    if at.random() < 0.05:
        return pristine[: at.randrange(len(pristine))]
    header, rest = bytearray(pristine[: subject.header]), pristine[subject.header :]
    text = subject.target.suffix != ".gguf"
    prefix = bytearray()
    if subject.target.suffix == ".safetensors":  # mostly keep the length right, so that the JSON is reached
        prefix, header = header[:8], header[8:]
    for _ in range(at.choice([1, 1, 1, 1, 2, 5])):
        header = at.choice(TEXT if text else BINARY)(header, at)
        if not header:
            break
    if prefix:
        prefix = bytearray(struct.pack("<Q", len(header)))
        prefix = number(prefix, at) if at.random() < 0.05 else prefix
    return bytes(prefix + header) + rest


def attempt(subject: Subject, load: bool) -> str:
    """Open what a subject is: 'opened' or 'refused'."""
    try:
        if subject.what == "head":
            tensors = open_head(subject.model).tensors
        else:
            checkpoint = open_checkpoint(subject.model)
            tensors = checkpoint.tensors
            if subject.what == "tokenizer":
                use_tokenizer(checkpoint)
            elif load:
                from forerun.backends.cpu.load import load_backend

                load_backend(checkpoint, threads=1)
            if not np.isfinite(checkpoint.config.inv_freq).all():
                raise RuntimeError("a frequency is not finite")
    except InputError as error:
        if not str(error).isprintable() or not str(error) or len(str(error)) > 600:
            raise RuntimeError(f"not one clear line: {str(error)!r}") from error
        return "refused"
    for tensor in tensors.values():
        int(np.bitwise_xor.reduce(tensor.data))
    return "opened"


def use_tokenizer(checkpoint: Checkpoint) -> None:
    """There, back, and in a chat."""
    gguf_file = checkpoint.format == "gguf"
    tokenizer = text.from_gguf(checkpoint.metadata) if gguf_file else text.from_folder(checkpoint.path)
    tokenizer.decode(tokenizer.encode("the other 日本\n", add_special=True)).encode()
    if tokenizer.chat_template is not None:
        render(tokenizer, [{"role": "user", "content": "hello"}]).encode()


def expired(signal_number: int, frame: object) -> None:
    raise TimeoutError(f"a case took more than {PATIENCE} s")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=4000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--load", action="store_true", help="load what opens into the CPU backend")
    options.add_argument("--keep", type=Path, help="keep the damaged files of findings here")
    chosen = options.parse_args()
    if not chosen.load:  # AddressSanitizer, the reason for --load, reserves more than any limit
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    warnings.simplefilter("error")
    signal.signal(signal.SIGPROF, expired)
    outcomes: Counter[tuple[str, str]] = Counter()
    slowest, findings = 0.0, 0
    with tempfile.TemporaryDirectory() as room, LateProgress("damaging headers") as progress:
        found = subjects(Path(room))
        pristine = [subject.target.read_bytes() for subject in found]
        for subject in found:
            if attempt(subject, chosen.load) != "opened":
                raise SystemExit(f"the undamaged {subject.name} does not open")
        for case in range(chosen.cases):
            at = random.Random(f"{chosen.seed}/{case}")
            which = case % len(found)
            subject = found[which]
            subject.target.write_bytes(damaged(subject, pristine[which], at))
            begin = time.perf_counter()
            signal.setitimer(signal.ITIMER_PROF, PATIENCE)
            try:
                outcomes[subject.name, attempt(subject, chosen.load)] += 1
            except Exception:
                findings += 1
                print(f"case {case} of seed {chosen.seed}, {subject.name}:\n{traceback.format_exc()}")
                if chosen.keep:
                    chosen.keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(subject.target, chosen.keep / f"{case}-{subject.target.name}")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.perf_counter() - begin)
            subject.target.write_bytes(pristine[which])
            progress(case + 1, chosen.cases)
    for (name, outcome), times in sorted(outcomes.items()):
        print(f"{name:<40} {outcome:<8} {times:>6}")
    print(f"{chosen.cases} cases, {findings} findings, the slowest took {slowest * 1000:.0f} ms")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
