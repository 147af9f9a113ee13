"""Another engine in a process of its own, run by `bench.peer_process` with any Python that has its package.

Needs nothing of forerun. Reads a JSON object a line from standard input and answers with one on standard
output. The first describes the engine:

    {"engine": "llama.cpp", "mode": "plain", "model": PATH, "threads": N, "context": N}
    -> {"version": "0.3.36"}

every other one asks for a text, greedily continued:

    {"tokens": [1, 2, 3], "max_tokens": 100, "ends": [2]}
    -> {"tokens": [4, 5], "times": [0.01, 0.02], "peak_bytes": N}

`times`: seconds from the start to the arrival of each token. Something that does not work: {"error": "..."}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.metadata import version
from time import perf_counter
from typing import Any

LOOKUP_TOKENS = {"llama.cpp": 2, "transformers": 10, "openvino": 5}
"""Guesses of the engines' prompt lookup: on a CPU, as their own documents advise."""


class Clock:
    """Tokens with the time of their arrival."""

    def __init__(self) -> None:
        self.start = perf_counter()
        self.tokens: list[int] = []
        self.times: list[float] = []

    def add(self, tokens: list[int]) -> None:
        now = perf_counter() - self.start
        self.tokens += tokens
        self.times += [now] * len(tokens)


class LlamaCpp:
    """llama.cpp through llama-cpp-python; `lookup` is its LlamaPromptLookupDecoding."""

    package = "llama-cpp-python"

    def __init__(self, model: str, mode: str, threads: int, context: int) -> None:
        library: Any = importlib.import_module("llama_cpp")
        draft: Any = None
        if mode == "lookup":
            speculative: Any = importlib.import_module("llama_cpp.llama_speculative")
            draft = speculative.LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS["llama.cpp"])
        self._model = library.Llama(
            model, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0,
            draft_model=draft, logits_all=draft is not None, verbose=False,
        )  # fmt: skip

    def write(self, tokens: list[int], max_tokens: int, ends: list[int]) -> Clock:
        self._model.reset()
        clock = Clock()
        for token in self._model.generate(tokens, temp=0.0, repeat_penalty=1.0):
            clock.add([token])
            if token in ends or len(clock.tokens) == max_tokens:
                return clock
        return clock


class Transformers:
    """transformers with PyTorch on the CPU, bf16; `lookup` is its prompt_lookup_num_tokens."""

    package = "transformers"

    def __init__(self, model: str, mode: str, threads: int, context: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        library: Any = importlib.import_module("transformers")
        self._torch.set_num_threads(threads)
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
        folder, file = os.path.split(model)
        place = (model, {}) if os.path.isdir(model) else (folder, {"gguf_file": file})
        self._model = library.AutoModelForCausalLM.from_pretrained(
            place[0], dtype=self._torch.bfloat16, **place[1]
        ).eval()
        self._extra = {"prompt_lookup_num_tokens": LOOKUP_TOKENS["transformers"]} if mode == "lookup" else {}
        self._base = library.generation.streamers.BaseStreamer

    def write(self, tokens: list[int], max_tokens: int, ends: list[int]) -> Clock:
        class Streamer(self._base):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                self.clock, self.prompt = Clock(), True

            def put(self, value: Any) -> None:
                if not self.prompt:
                    self.clock.add(value.reshape(-1).tolist())
                self.prompt = False

            def end(self) -> None:
                pass

        streamer = Streamer()
        ids = self._torch.tensor([tokens])
        with self._torch.inference_mode():
            self._model.generate(
                ids, attention_mask=self._torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False,
                eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0, streamer=streamer,
                **self._extra,
            )  # fmt: skip
        return streamer.clock


class OpenVino:
    """OpenVINO GenAI; `lookup` is its prompt lookup."""

    package = "openvino-genai"

    def __init__(self, model: str, mode: str, threads: int, context: int) -> None:
        self._numpy: Any = importlib.import_module("numpy")
        self._openvino: Any = importlib.import_module("openvino")
        self._library: Any = importlib.import_module("openvino_genai")
        options = {"prompt_lookup": True} if mode == "lookup" else {}
        self._pipeline = self._library.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, **options)
        self._lookup = mode == "lookup"

    def write(self, tokens: list[int], max_tokens: int, ends: list[int]) -> Clock:
        running = self._library.StreamingStatus.RUNNING

        class Streamer(self._library.StreamerBase):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.clock = Clock()

            def write(self, token: Any) -> Any:
                self.clock.add(list(token) if isinstance(token, (list, tuple)) else [int(token)])
                return running

            def end(self) -> None:
                pass

        config = self._library.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.stop_token_ids = set(ends)
        config.ignore_eos = not ends
        if self._lookup:
            config.num_assistant_tokens = LOOKUP_TOKENS["openvino"]
            config.max_ngram_size = 3
        ids = self._numpy.array([tokens], dtype=self._numpy.int64)
        tensors = [self._openvino.Tensor(a) for a in (ids, self._numpy.ones_like(ids))]
        streamer = Streamer()
        self._pipeline.generate(self._library.TokenizedInputs(*tensors), config, streamer)
        return streamer.clock


ENGINES: dict[str, Any] = {"llama.cpp": LlamaCpp, "transformers": Transformers, "openvino": OpenVino}


def peak_bytes() -> int:
    """The most memory that was resident, or 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")  # engines like to print on standard output
    os.dup2(2, 1)

    def say(answer: dict[str, object]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    engine: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if engine is None:
                kind = ENGINES[asked["engine"]]
                engine = kind(asked["model"], asked["mode"], asked["threads"], asked["context"])
                say({"version": version(kind.package)})
            else:
                clock = engine.write(asked["tokens"], asked["max_tokens"], asked["ends"])
                say({"tokens": clock.tokens, "times": clock.times, "peak_bytes": peak_bytes()})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
