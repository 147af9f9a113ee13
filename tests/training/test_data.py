"""Training data that the target writes: its own text, its own hidden states, nothing lost, nothing twice."""

from __future__ import annotations

import os
import resource
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import forerun
from forerun.engine import Engine
from forerun.errors import InputError
from forerun.models.rows import Rows
from forerun.training import requests
from forerun.training.data import Recorder, open_to_read, open_to_write
from forerun.training.prompts import read_prompts
from forerun.training.store import FILES, Conversation, Store
from forerun.training.writer import Writer, repeats
from forerun.weights.bfloat16 import to_bfloat16
from support.tiny import Tiny, write_tiny_gguf

ENOUGH = 6_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=4)
    return forerun.load(str(write_tiny_gguf(path, tiny)), threads=1)


def write(
    engine: Engine, folder: Path, tokens: int = ENOUGH, rows: int = 8, stop_at: int | None = None
) -> None:
    """Write data; with `stop_at`, as if interrupted there."""

    def progress(done: int, _: int) -> None:
        if stop_at is not None and done >= stop_at:
            raise KeyboardInterrupt

    with open_to_write(engine, folder, model="tiny", seed=3, prompts=None) as store:
        writer = Writer(engine, store, seed=3, rows=rows, longest_answer=60)
        if stop_at is None:
            writer.write(tokens, progress)
            return
        with pytest.raises(KeyboardInterrupt):
            writer.write(tokens, progress)


def conversations(folder: Path) -> dict[int, Conversation]:
    store = Store(folder)
    found = {x.number: x for x in (store.conversation(place) for place in range(len(store)))}
    assert len(found) == len(store), "a conversation was written twice"
    return found


@pytest.fixture(scope="module")
def written(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(engine, folder)
    return folder


def test_features_are_those_of_a_prefill(engine: Engine, written: Path) -> None:
    store = open_to_read([written], 64, 4, engine.backend.config.vocab_size)[0]
    for place in range(0, len(store), 5):
        one = store.conversation(place)
        rows = Rows.chain(one.tokens[:-1], engine.backend.new_cache(len(one.tokens)))
        features = engine.backend.forward(rows, np.zeros(0, np.int32), store.taps).features
        assert np.array_equal(one.features, to_bfloat16(features))


def test_answers_are_what_the_target_generates(engine: Engine, written: Path) -> None:
    greedy = [one for one in conversations(written).values() if one.temperature == 0]
    assert len(greedy) > 5
    for one in greedy[:8]:
        length = len(one.tokens) - one.answer
        stream = engine.stream_tokens(
            one.tokens[: one.answer].tolist(), forerun.SamplingParams(max_tokens=length)
        )
        expected = [token for step in stream for token in step.tokens]
        ended = one.tokens[-1] in engine.end_tokens
        assert one.tokens[one.answer : len(one.tokens) - ended].tolist() == expected[: length - ended]


def test_interruptions_change_nothing(engine: Engine, written: Path, tmp_path: Path) -> None:
    write(engine, tmp_path, rows=3, stop_at=1_000)
    with (tmp_path / FILES[2]).open("ab") as file:
        file.write(b"torn")  # as a kill within a write leaves it
    with (tmp_path / FILES[0]).open("ab") as file:
        file.write(b"torn")
    kept = conversations(tmp_path)
    write(engine, tmp_path, tokens=3_000, rows=5, stop_at=2_000)
    write(engine, tmp_path)
    again, whole = conversations(tmp_path), conversations(written)
    assert kept.keys() <= again.keys()
    both = again.keys() & whole.keys()
    assert len(both) > len(whole) / 2
    for number in both:
        assert np.array_equal(again[number].tokens, whole[number].tokens)
        assert np.array_equal(again[number].features, whole[number].features)


def test_hidden_states_may_be_bounded(engine: Engine, written: Path, tmp_path: Path) -> None:
    """From the first conversation on that does not fit none are kept, whatever the bound is later; computed
    again, they are the same."""
    whole, record = Store(written), Recorder(engine.backend)
    with open_to_write(engine, tmp_path, model="tiny", seed=3, prompts=None, most_bytes=10**6) as store:
        for place in range(12):
            store.add(whole.conversation(place))
    assert (tmp_path / FILES[2]).stat().st_size <= 10**6
    with open_to_write(engine, tmp_path, model="tiny", seed=3, prompts=None) as store:
        store.add(whole.conversation(12))
        assert not store.is_whole
    store = Store(tmp_path)
    kept = [store.conversation(place).features is not None for place in range(13)]
    assert any(kept)
    assert kept == sorted(kept, reverse=True)
    assert not kept[-1]
    assert whole.is_whole
    for place in range(13):
        one, again = whole.conversation(place), store.conversation(place)
        assert again.tokens.tolist() == one.tokens.tolist()
        features = record(again.tokens) if again.features is None else again.features
        assert np.array_equal(features, one.features)


def test_no_request_twice(written: Path) -> None:
    hashes = [one.request_hash for one in conversations(written).values()]
    assert len(set(hashes)) == len(hashes)


def test_the_users_prompts(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "one"}\n"two"\n\n')
    (tmp_path / "b.txt").write_text("three\nlines\n\n\n\ntwo\n\nfour\n")
    prompts = read_prompts(tmp_path)
    assert prompts == ["one", "two", "three\nlines", "four"]
    with open_to_write(engine, tmp_path / "data", model="tiny", seed=0, prompts=tmp_path) as store:
        Writer(engine, store, seed=0, rows=3, prompts=prompts, longest_answer=20).write(10**9)
    found = conversations(tmp_path / "data")
    assert sorted(found) == list(range(12))  # each at three temperatures, then there is nothing more to write
    for number, one in found.items():
        asked = engine.tokenizer.decode(one.tokens[: one.answer].tolist())
        assert prompts[number % 4] in asked
        assert len(one.tokens) - one.answer <= 20


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", "{"),
        ("a.jsonl", '{"text": "x"}'),
        ("a.jsonl", "[" * 100_000),
        ("a.jsonl", '"\\ud800"'),
        ("a.txt", " \n"),
    ],
)
def test_unusable_prompts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        read_prompts(tmp_path)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_models_of_few_layers(layers: int, tmp_path: Path) -> None:
    tiny = Tiny(hidden=64, inner=96, heads=4, head_dim=16, layers=layers)
    engine = forerun.load(str(write_tiny_gguf(tmp_path / "tiny.gguf", tiny)), threads=1)
    if layers < 3:
        with pytest.raises(InputError, match=r"layers?; data is written for models of 3 or more"):
            write(engine, tmp_path / "data", 500)
        return
    write(engine, tmp_path / "data", 500)
    assert conversations(tmp_path / "data")


def test_a_device_has_no_prompts() -> None:
    with pytest.raises(InputError, match="neither a file nor a folder"):
        read_prompts(Path("/dev/zero"))


@pytest.mark.parametrize(
    "about",
    ["{", "[" * 100_000, "[]", "{}", '{"taps": [1], "hidden_size": 0}', '{"taps": [-1], "hidden_size": 8}',
     '{"taps": 1, "hidden_size": 8}', '{"taps": [1], "hidden_size": 1e400}'],
)  # fmt: skip
def test_no_folder_of_data(tmp_path: Path, about: str) -> None:
    (tmp_path / "about.json").write_text(about)
    with pytest.raises(InputError, match="no folder of training data"):
        Store(tmp_path)


def test_requests_are_of_all_kinds_and_repeat_by_seed() -> None:
    many = [requests.fresh(5, number) for number in range(0, 600, 2)]
    assert many == [requests.fresh(5, number) for number in range(0, 600, 2)]
    assert many[0] != requests.fresh(6, 0)
    texts = [request.text for request in many]
    for word in ("Python", "JSON", "Translate", "What", "story"):
        assert any(word in text for text in texts)
    assert {request.temperature for request in many} == set(requests.TEMPERATURES)
    answer = "A long answer of many words. " * 10
    seconds = [requests.follow_up(5, number, answer) for number in range(0, 40, 2)]
    assert 5 < sum(second is not None for second in seconds) < 20
    assert all(answer.strip() in second.text for second in islice(filter(None, seconds), 5))
    assert requests.follow_up(5, 0, "Short.") is None


def test_circles_are_seen() -> None:
    circle = np.tile(np.arange(7), 20)
    assert repeats(circle)
    assert not repeats(circle[:50])
    assert not repeats(np.arange(200))


def test_other_data_is_refused(engine: Engine, written: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="seed"):
        open_to_write(engine, written, model="tiny", seed=4, prompts=None)
    with pytest.raises(InputError, match="another model"):
        open_to_read([written], 128, 4, engine.backend.config.vocab_size)
    with pytest.raises(InputError, match="no folder of training data"):
        Store(tmp_path)
    whole = (written / FILES[1]).read_bytes()
    (written / FILES[1]).write_bytes(whole[:-4])
    with pytest.raises(InputError, match="lacks data"):
        Store(written)
    (written / FILES[1]).write_bytes(b"\xff" * 4 + whole[4:])
    with pytest.raises(InputError, match="damaged"):
        open_to_read([written], 64, 4, engine.backend.config.vocab_size)
    (written / FILES[1]).write_bytes(whole)


def test_one_writer_a_folder(tmp_path: Path) -> None:
    about = {"model": "none", "taps": [1], "hidden_size": 4}
    with Store(tmp_path, about):
        with pytest.raises(InputError, match="another process is writing"):
            Store(tmp_path, about)
        Store(tmp_path)  # readers may look
    Store(tmp_path, about).close()


def test_a_full_disk(written: Path, tmp_path: Path) -> None:
    """The file is named; what was whole before stays, and writing goes on once there is room."""
    whole = Store(written)
    conversations = [whole.conversation(place) for place in range(len(whole))]

    def add_all(store: Store) -> None:
        for one in conversations[len(store) :]:
            store.add(one)

    used = (written / FILES[2]).stat().st_size // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(tmp_path, whole.about) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (used, before[1]))
        try:
            with pytest.raises(InputError, match=rf"cannot write {tmp_path}/features.bin: File too large"):
                add_all(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 0 < len(Store(tmp_path)) < len(whole)
    with Store(tmp_path, whole.about) as store:
        add_all(store)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_what_the_data_is_about_is_written_whole(tmp_path: Path) -> None:
    """Half of it would make the folder one of no data."""
    about = {"taps": [1], "hidden_size": 4}
    (tmp_path / f".forerun-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"cannot write .*about.json: No space"):
        Store(tmp_path, about)
    assert list(tmp_path.iterdir()) == []
    with Store(tmp_path, about) as store:
        assert len(store) == 0
