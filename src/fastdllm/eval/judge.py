"""A judge model behind an OpenAI-compatible address, for benchmarks whose own score asks one.

    judge = Judge("http://localhost:8000/v1", "my-model", cache=Path("run/judge.jsonl"))
    judge.ask("Extract the answer ...", r"\\S")     the reply, or None after the last attempt

The key comes from FASTDLLM_JUDGE_KEY or OPENAI_API_KEY and is written nowhere. Replies are kept,
so a run that is interrupted, or whose judge failed, asks only what it has no reply for. A
judgement that failed, or is empty, never counts as right.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fastdllm.errors import InputError
from fastdllm.eval.run import read_lines
from fastdllm.eval.summary import wilson
from fastdllm.eval.task import Problem, Task

TRIES, PAUSE, TIMEOUT = 5, 1.0, 120.0
GIVE_UP = 24
"""After so many prompts in a row without a reply nobody is asked any more in this run."""
AT_ONCE = 8


class Judge:
    """Asks, tries again, remembers."""

    def __init__(
        self, url: str, model: str, cache: Path | None = None, *, pause: float = PAUSE
    ) -> None:
        try:
            known = urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname
        except ValueError:
            known = None
        if not known:
            raise InputError(f"the judge's address is '{url}'; wanted http://... or https://...")
        self.url, self.model, self.cache, self.pause = url.rstrip("/"), model, cache, pause
        self.lock = threading.Lock()
        self.trouble = ""
        """What went wrong last."""
        self.failures = 0
        """Prompts in a row without a reply."""
        kept = _read(cache) if cache is not None else {}
        self.replies: dict[str, str] = kept

    def ask(self, prompt: str, wanted: str) -> str | None:
        """The reply, from memory if it was given before; None if none fits what is wanted."""
        asked = f"{self.url}\n{self.model}\n{prompt}".encode("utf-8", "replace")
        name = hashlib.sha256(asked).hexdigest()
        if re.search(wanted, self.replies.get(name, "")):
            return self.replies[name]
        for attempt in range(TRIES):
            if self.failures >= GIVE_UP:
                return None
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                reply = self._post(prompt)
            except _RefusalError as refusal:
                self.trouble = str(refusal)
                if not refusal.passing:
                    break
                continue
            if re.search(wanted, reply):
                self.failures = 0
                self._keep(name, reply)
                return reply
            self.trouble = "a reply that says nothing" if reply.strip() else "an empty reply"
        self.failures += 1
        return None

    def _post(self, prompt: str) -> str:
        body = {
            "model": self.model, "messages": [{"role": "user", "content": prompt}],
            "temperature": 0, "max_tokens": 256,
        }  # fmt: skip
        head = {"Content-Type": "application/json"}
        key = os.environ.get("FASTDLLM_JUDGE_KEY") or os.environ.get("OPENAI_API_KEY")
        if key:
            head["Authorization"] = f"Bearer {key.strip()}"
        request = Request(f"{self.url}/chat/completions", json.dumps(body).encode(), head)
        try:
            with OPENER.open(request, timeout=TIMEOUT) as answer:
                found = json.loads(answer.read())["choices"][0]["message"]["content"]
        except HTTPError as error:
            passing = error.code == 429 or error.code >= 500
            raise _RefusalError(f"HTTP {error.code}", passing) from None
        except (URLError, HTTPException, OSError) as error:
            raise _RefusalError(str(getattr(error, "reason", error)), True) from None
        except (KeyError, IndexError, TypeError, ValueError):
            raise _RefusalError("a reply that is not an OpenAI-style completion", True) from None
        return found if isinstance(found, str) else ""

    def _keep(self, name: str, reply: str) -> None:
        with self.lock:
            self.replies[name] = reply
            if self.cache is not None:
                self.cache.parent.mkdir(parents=True, exist_ok=True)
                with self.cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"id": name, "reply": reply}) + "\n")


class _Stay(HTTPRedirectHandler):
    """The key is for one address: nobody is followed elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = build_opener(_Stay)


class _RefusalError(Exception):
    def __init__(self, why: str, passing: bool) -> None:
        super().__init__(why)
        self.passing = passing


def _read(path: Path) -> dict[str, str]:
    return {
        line["id"]: line["reply"] for line in read_lines(path, mend=True, wanted=("id", "reply"))
    }


@dataclass(frozen=True)
class Judged:
    """How a judge found the answers of one setting."""

    verdicts: Mapping[str, bool | None]
    """Of each problem by its fingerprint; None where the judge failed, which counts as wrong."""

    @property
    def right(self) -> int:
        """How many are right."""
        return sum(v is True for v in self.verdicts.values())

    @property
    def failed(self) -> int:
        """Of how many the judge said nothing."""
        return sum(v is None for v in self.verdicts.values())

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.right / len(self.verdicts) if self.verdicts else 0.0

    def as_json(self) -> dict[str, Any]:
        """For the last line of stdout."""
        low, high = wilson(self.right, len(self.verdicts))
        return {
            "accuracy": self.accuracy, "interval": [round(low, 4), round(high, 4)],
            "count": len(self.verdicts), "failed": self.failed,
        }  # fmt: skip


def judged(
    judge: Judge, task: Task, problems: Sequence[Problem], lines: Mapping[str, Mapping[str, Any]]
) -> Judged:
    """Every answer of a sheet, several at once."""
    assert task.judge is not None
    ask, texts = task.judge, [lines[p.fingerprint]["text"] for p in problems]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(lambda p, text: ask(p, text, judge.ask), problems, texts))
    return Judged(dict(zip((p.fingerprint for p in problems), verdicts, strict=True)))
