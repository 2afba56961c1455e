"""The rules: which masked positions to commit in this step.

A rule is a frozen value, made by name (`Frechet(0.25)`) or from a short string
(`parse("frechet:0.25")`), and called on a `Profile`. Once the doubts are sorted a rule is one
line: the risk of committing the first n never falls with n, so the accepted ranks are a prefix
by themselves.

    full            one token a step                               the slow, careful baseline
    topk:K          K tokens a step                                a fixed schedule
    threshold:0.9   c >= tau                                       Fast-dLLM
    factor:0.75     (n+1) d_(n) < f                                Fast-dLLM
    frechet:0.25    d_(1) + ... + d_(n) + d_(n) < 1 - delta        the paper, Algorithm 1
    exact:0.25      the largest set with L - max p2 > delta        the exact top-2 certificate
    entropy:0.1     H_(1) + ... + H_(n-1) <= gamma                 EB-Sampler
    localleap:0.9   c >= tau, or less near one that passes         LocalLeap
    hierarchy:0.9   c >= tau, and the best of every run of masks   dInfer
    dilated:2       another rule's, at least so far apart          dilated unmasking
    klass:0.9       c > tau and unmoved for two steps              KLASS
    credit:0.9      c >= tau after credit for being best before    CreditDecoding
    wino:0.6        a wide draft, taken back where disowned        WINO
    local:0.25      Fréchet for each token and its neighbours      ours
    stable:0.25     the product's gap > 2 x residual dependence    ours, after the paper's lemma

`frechet:0.25,calibration=cal.json` and the same with any rule raises the doubts first; see
`fastdllm calibrate`.
"""

import re
from dataclasses import MISSING
from typing import Any

from fastdllm.errors import InputError, did_you_mean
from fastdllm.selection.field import (
    Credit,
    Dilated,
    Entropy,
    Hierarchy,
    Klass,
    LocalLeap,
    Wino,
)  # fmt: skip
from fastdllm.selection.ours import Local, Stable
from fastdllm.selection.paper import Exact, Factor, Frechet, Full, Threshold, TopK
from fastdllm.selection.profile import Interval, Mask, Profile, Selector

__all__ = [
    "RULES", "Credit", "Dilated", "Entropy", "Exact", "Factor", "Frechet", "Full", "Hierarchy",
    "Interval", "Klass", "Local", "LocalLeap", "Mask", "Profile", "Selector", "Stable", "Threshold",
    "TopK", "Wino", "parse", "parse_many",
]  # fmt: skip

RULES: dict[str, type[Selector]] = {
    rule.name: rule
    for rule in (
        Full, TopK, Threshold, Factor, Frechet, Exact, Entropy, LocalLeap, Hierarchy, Dilated,
        Klass, Credit, Wino, Local, Stable,
    )
}  # fmt: skip


def parse_many(text: str) -> list[Selector]:
    """Rules with commas between; `key=value` belongs to the rule before it.

    >>> parse_many("full,frechet:0.25,eta=0.02,topk:4")
    [Full(), Frechet(margin=0.25, eta=0.02), TopK(k=4)]
    """
    return [parse(part) for part in split_rules(text)]


def split_rules(text: str) -> list[str]:
    """The same as texts.

    >>> split_rules("threshold,local:0.1/0.2,radius=2")
    ['threshold', 'local:0.1/0.2,radius=2']
    """
    return re.split(r",(?!\s*\w+=)", text)


def parse(text: str) -> Selector:
    """The rule that `text` names: `name`, `name:value` or `name:value,key=value`.

    >>> parse("frechet:0.25,eta=0.02")
    Frechet(margin=0.25, eta=0.02)
    >>> parse("threshold")
    Threshold(tau=0.9)
    """
    head, *pairs = text.strip().split(",")
    name, colon, value = head.partition(":")
    if name not in RULES:
        raise InputError(f"unknown rule '{name}'; {did_you_mean(name, RULES)}")
    known = {f.name: f for f in RULES[name].settings()}
    first = next((f.name for f in known.values() if not f.kw_only), None)
    if colon and first is None:
        raise InputError(f"'{text}' has a value; '{name}' takes none")
    given = [(first or "", value)] if colon else []
    given += [(key.strip(), value) for key, _, value in (pair.partition("=") for pair in pairs)]

    settings: dict[str, Any] = {}
    for key, value in given:
        if key not in known:
            raise InputError(f"'{text}': unknown setting '{key}'; {did_you_mean(key, known)}")
        if key in settings:
            raise InputError(f"'{text}': {key} is given twice; keep one")
        settings[key] = known[key].metadata["read"](f"'{text}': {key}", value.strip())
    for key, f in known.items():
        if key not in settings and f.default is MISSING and f.default_factory is MISSING:
            raise InputError(f"'{text}': {key} is missing; try '{name}:4'")
    return RULES[name](**settings)
