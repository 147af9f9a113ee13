"""Other engines, each in a process of its own that runs `bench/peer_worker.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import InputError

PEERS = ("llama.cpp", "transformers", "openvino")
MODES = ("plain", "lookup")
WORKER = Path(__file__).with_name("peer_worker.py")


@dataclass(frozen=True)
class PeerText:
    """What a peer wrote: tokens, the second at which each arrived, and the most memory it had so far."""

    tokens: list[int]
    times: list[float]
    peak_bytes: int


class PeerProcess:
    """One mode of one engine.

    Args:
        engine: one of PEERS.
        mode: one of MODES.
        model: its file or folder.
        python: the interpreter that has the engine's package; None is this one.

    Raises:
        InputError: the engine is not installed or cannot use the model.
    """

    def __init__(
        self, engine: str, mode: str, model: Path, threads: int, context: int, python: str | None = None
    ) -> None:
        self.engine = engine
        self.mode = mode
        interpreter = python or sys.executable
        try:
            self._process = subprocess.Popen(
                [interpreter, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # a Ctrl-C is for the program that asked
            )
        except OSError as error:
            raise InputError(f"cannot run {interpreter}: {error.strerror}") from error
        described = {"engine": engine, "mode": mode, "model": str(model), "threads": threads}
        try:
            self.version = str(self._ask({**described, "context": context})["version"])
        except BaseException:
            self.close()
            raise

    def write(self, tokens: list[int], max_tokens: int, ends: list[int]) -> PeerText:
        """Continue `tokens` greedily, to one of `ends` or for `max_tokens`."""
        found = self._ask({"tokens": tokens, "max_tokens": max_tokens, "ends": ends})
        return PeerText(found["tokens"], found["times"], found["peak_bytes"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer: object = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise InputError(f"{self.engine} ({self.mode}) ended without an answer; leave it out") from None
        if not isinstance(answer, dict) or "error" in answer:
            told = answer.get("error") if isinstance(answer, dict) else answer
            raise InputError(f"{self.engine} ({self.mode}) does not work here: {told}")
        return answer


def installed(python: str | None = None) -> list[str]:
    """The engines whose packages that interpreter has.

    Raises:
        InputError: it cannot be run, or is no Python.
    """
    interpreter = python or sys.executable
    packages = {"llama.cpp": "llama_cpp", "transformers": "transformers", "openvino": "openvino_genai"}
    code = "import importlib.util as u, sys; print(*(u.find_spec(n) is not None for n in sys.argv[1:]))"
    try:
        done = subprocess.run(
            [interpreter, "-c", code, *packages.values()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise InputError(f"cannot run {interpreter}: {error.strerror}") from error
    told = done.stdout.split()
    if done.returncode != 0 or len(told) != len(packages) or not {"True", "False"}.issuperset(told):
        raise InputError(f"{interpreter} is no Python that can tell which engines it has")
    return [name for name, there in zip(packages, told, strict=True) if there == "True"]
