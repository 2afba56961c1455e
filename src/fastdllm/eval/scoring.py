"""From a model's text to what it answers."""

import re

FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...}, braces matched.

    >>> last_boxed(r"so $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin, depth = start + len("\\boxed{"), 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return None


def math_equal(result: str, text: str) -> bool:
    r"""Whether a text's last box holds the result, spaces aside.

    >>> math_equal("5x + 22", r"The answer is $\boxed{5x+22}$.")
    True
    """
    boxed = last_boxed(text)
    return boxed is not None and _plain(boxed) == _plain(result)


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def extract_code(text: str) -> str:
    """The code of an answer: what is fenced, else from the first definition on.

    >>> extract_code("Sure: def f(x):\\n    return x")
    'def f(x):\\n    return x'
    """
    fenced = FENCE.search(text)
    if fenced:
        return fenced.group(1)
    start = re.search(r"(?:from|import|def|class|@)\s", text)
    return text[start.start() :] if start else text
