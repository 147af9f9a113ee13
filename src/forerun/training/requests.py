"""What the target is asked to write about: requests by kind, begun by us and finished by the model itself.

Magpie (Xu et al., arXiv 2406.08464): open the user's turn of the chat template and let the model write the
request, then its answer. An opening of a few words steers the kind. Some answers become the text that a
second request is about (a summary, an extraction, a question), so that answers drawing on a text occur too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Of answers, each as often as it stands here."""


@dataclass(frozen=True)
class Request:
    """One conversation to be written.

    Attributes:
        number: names it among all of a seed. Even numbers are begun afresh; number + 1 is its follow-up.
        text: the user's words so far.
        open: the model goes on with the user's words until it ends the turn; otherwise they are complete.
        temperature: of the answer.
        seed: of all that is sampled.
    """

    number: int
    text: str
    open: bool
    temperature: float
    seed: int


Draw = np.random.Generator
Opening = Callable[[Draw], str]

LANGUAGES = (
    ("Python",) * 9 + ("JavaScript",) * 3 + ("Java", "C", "C++", "Go", "Rust", "SQL", "Bash", "HTML", "R")
)
PARTS = ("function", "function", "program", "class", "script", "method", "snippet")
VERBS = (
    "sort", "count", "find", "compute", "read", "merge", "remove", "reverse", "check", "parse", "print",
    "sum", "filter", "convert", "search", "split", "generate", "validate", "group", "compare", "draw",
    "download",
)  # fmt: skip
THINGS = (
    "list", "string", "file", "number", "dictionary", "matrix", "tree", "word", "date", "array", "graph",
    "table", "set of integers", "sentence", "CSV file", "stack", "queue", "linked list", "price", "user",
    "password",
)  # fmt: skip
TOPICS = (
    "history", "the ocean", "cooking", "music", "a small town", "medicine", "space travel", "the weather",
    "a dog", "economics", "football", "an old house", "machine learning", "gardening", "law",
    "a journey by train", "art", "chemistry", "a school", "politics", "mountains", "trade", "sleep", "bees",
    "a lost letter", "electricity", "mathematics", "languages", "cities", "a robot", "friendship",
    "the moon", "health", "a river", "energy", "philosophy", "insects", "bread", "bridges", "a market",
    "photography", "rain", "volcanoes", "the brain", "a king", "computers", "a detective", "birds", "money",
    "water", "evolution", "theatre", "a garden", "war",
)  # fmt: skip
PEOPLE = (
    "teacher", "pirate", "doctor", "detective", "travel guide", "scientist", "chef", "poet", "shopkeeper",
    "astronaut", "farmer", "lawyer", "coach", "engineer", "librarian", "knight", "programmer", "journalist",
)  # fmt: skip
FORMS = (
    "a short story", "a poem", "a letter", "a blog post", "an email", "a speech", "a dialogue",
    "a news article", "an essay", "a product description", "a fable", "a review", "a diary entry",
    "an advertisement", "a song",
)  # fmt: skip
FIELDS = (
    "name", "age", "price", "address", "date", "title", "author", "quantity", "colour", "email", "rating",
    "city", "country", "year", "tags", "description", "status", "total", "items", "phone", "score",
    "category",
)  # fmt: skip
TONGUES = ("French", "German", "Spanish", "Italian", "Portuguese")


def pick(draw: Draw, values: tuple[str, ...]) -> str:
    """One of the values."""
    return values[int(draw.integers(len(values)))]


def code(draw: Draw) -> str:
    """A programming task."""
    language, part, verb, thing = (pick(draw, x) for x in (LANGUAGES, PARTS, VERBS, THINGS))
    return pick(
        draw,
        (
            f"Write a {language} {part} that",
            f"Write a {language} {part} to {verb}",
            f"Write a {language} {part} that takes a {thing} and",
            f"Write a {part} in {language} which can {verb} a {thing}",
            f"Complete the following {language} code:\n\n",
            f"Complete this Python function:\n\ndef {verb}_",
            "Finish the Python function below.\n\nfrom typing import List\n\n\ndef ",
            f"Implement a {thing} in {language}",
            f"Fix the error in this {language} code:\n\n",
            f"Explain what this {language} code does:\n\n",
            f"How do I {verb} a {thing} in {language}",
            f"Given a {thing}, write {language} code that",
            f"Write unit tests for a {language} {part} that",
            f"Refactor the following {language} {part}:\n\n",
        ),
    )


def structured(draw: Draw) -> str:
    """JSON, tables, lists and extraction."""
    first, second, third = (str(x) for x in draw.choice(FIELDS, 3, replace=False))
    topic = pick(draw, TOPICS)
    return pick(
        draw,
        (
            f"Write a JSON object with the fields {first}, {second} and {third} for",
            f"Create a JSON array of five records about {topic}, each with {first} and {second}",
            "Convert the following text to JSON:\n\n",
            f"Extract the {first} and the {second} from this text:\n\n",
            "Extract all names and dates from the following paragraph as JSON:\n\n",
            f"Make a table with the columns {first}, {second} and {third} for",
            f"Write a YAML file that describes {topic}",
            "Make a list of ten",
            "Turn this list into CSV:\n\n",
            "Classify each of the following",
        ),
    )


def question(draw: Draw) -> str:
    """Knowledge and explanation."""
    topic, person = pick(draw, TOPICS), pick(draw, PEOPLE)
    return pick(
        draw,
        (
            "What is", "What are", "Why do", "Why is", "How does", "How do", "How can I", "Who was",
            "When did", "Where", "Which", "Can you explain", "Explain", "Describe",
            "What is the difference between", "Is it", f"What should a {person} know about",
            f"Explain {topic} to", f"Tell me about {topic}", "What are the causes of", "Compare",
            "Give me advice on", f"What do you know about {topic}", f"I have a question about {topic}.",
            f"Discuss the importance of {topic}", "In what year",
        ),
    )  # fmt: skip


def creative(draw: Draw) -> str:
    """Stories, letters, roles."""
    topic, person, form = pick(draw, TOPICS), pick(draw, PEOPLE), pick(draw, FORMS)
    return pick(
        draw,
        (
            f"Write {form} about {topic}",
            f"Write {form} about",
            f"Write {form} in which a {person}",
            f"Pretend to be a {person}.",
            f"You are a {person}. Tell me",
            f"Imagine you are a {person} who",
            f"Act as a {person} and",
            f"Compose {form} for",
            f"Tell me a story about a {person} and {topic}",
            f"Draft {form} from a {person} to",
            f"Describe {topic} in the style of",
            "Rewrite the following sentence so that it",
            f"Help me write {form}",
        ),
    )


def reasoning(draw: Draw) -> str:
    """Arithmetic and thinking in steps."""
    n, m = int(draw.integers(2, 100)), int(draw.integers(2, 50))
    thing = pick(
        draw, ("apples", "books", "tickets", "eggs", "hours", "pages", "dollars", "students", "miles")
    )
    return pick(
        draw,
        (
            f"A {pick(draw, PEOPLE)} has {n} {thing} and",
            f"If a train travels {n} miles in {m}",
            f"There are {n} {thing} in a",
            f"Solve the equation {m}x +",
            f"Anna buys {n} {thing}. She",
            f"What is {n} times {m}? Then",
            "Solve this problem step by step:",
            f"The sum of two numbers is {n}",
            f"Tom earns ${n} an hour",
            "Find the area of",
            "What is the probability that",
            "Which of these statements is true",
        ),
    )


def translation(draw: Draw) -> str:
    """From one language to another."""
    one, other = draw.choice(TONGUES, 2, replace=False)
    return pick(
        draw,
        (
            f"Translate the following sentence from {one} to English:",
            f"Translate to {one}:",
            f"Translate {one} to {other}:",
            f"How do you say in {one}",
        ),
    )


def anything(draw: Draw) -> str:
    """Nothing but the open turn."""
    return ""


KINDS: tuple[tuple[float, Opening], ...] = (
    (0.30, code),
    (0.08, structured),
    (0.18, question),
    (0.18, creative),
    (0.10, reasoning),
    (0.04, translation),
    (0.12, anything),
)
LEAST_TEXT = 40
"""Words of an answer that a follow-up may be about."""

SUMMARIES = (
    "Summarize the following text.", "Summarize this text in one sentence.",
    "Give a short summary of this article.", "What are the main points of the text below?", "Summarize:",
    "Write a summary of the passage in three sentences.", "Shorten the following text to half its length.",
    "Write a title and a one-paragraph summary for this text.",
    "List the key facts of this passage as bullet points.", "Rewrite this text in simpler words.",
)  # fmt: skip
EXTRACTIONS = (
    "Extract the names, places and dates of the text as JSON.",
    "List all people and things that the text mentions.",
    "Extract the most important facts as a JSON object.",
    "Copy the sentence that matters most in this text.",
    "Return a JSON array of the topics in this passage.", "Correct the mistakes in the following text.",
)  # fmt: skip


def fresh(seed: int, number: int) -> Request:
    """The request of an even number."""
    draw = np.random.default_rng((seed, number))
    shares = np.array([share for share, _ in KINDS])
    opening = KINDS[int(draw.choice(len(KINDS), p=shares / shares.sum()))][1]
    return _request(draw, number, opening(draw), True)


def follow_up(seed: int, number: int, answer: str) -> Request | None:
    """A request about the answer to `number`, or None: most answers get none."""
    draw = np.random.default_rng((seed, number + 1))
    if "```" in answer or len(answer.split()) < LEAST_TEXT or draw.random() > 0.6:
        return None
    text = answer.strip()
    way = draw.random()
    if way < 0.4:
        asked, open = f"{pick(draw, SUMMARIES)}\n\n{text}", False
    elif way < 0.55:
        asked, open = f"{pick(draw, EXTRACTIONS)}\n\n{text}", False
    elif way < 0.65:
        asked, open = f"{text}\n\n{pick(draw, SUMMARIES)}", False
    elif way < 0.85:
        asked, open = f"Answer the question from the text.\n\nText: {text}\n\nQuestion:", True
    else:
        asked, open = f"{text}\n\nBased on the text above,", True
    return _request(draw, number + 1, asked, open)


def given(seed: int, number: int, prompt: str, temperature: float) -> Request:
    """A request that the user has given."""
    draw = np.random.default_rng((seed, number))
    return Request(number, prompt, False, temperature, int(draw.integers(2**63)))


def _request(draw: Draw, number: int, text: str, open: bool) -> Request:
    temperature = TEMPERATURES[int(draw.integers(len(TEMPERATURES)))]
    return Request(number, text, open, temperature, int(draw.integers(2**63)))
