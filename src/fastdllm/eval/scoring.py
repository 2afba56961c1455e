"""From a model's text to what it answers."""

import ast
import re
from decimal import Decimal, InvalidOperation

from fastdllm.errors import InputError

TAIL = 2000
"""An answer stands at the end of a text; more of it than this is not looked at."""
FENCE = re.compile(
    r"^([ \t]*)```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```[^\n]*$|```[ \t]*$|\Z)", re.DOTALL | re.M
)
PYTHON = ("python", "py", "python3")


def last_boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...} that is not empty, braces matched.

    >>> last_boxed(r"so $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    start = len(text)
    while (start := text.rfind("\\boxed{", 0, start)) >= 0:
        begin, depth = start + len("\\boxed{"), 1
        for at in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                if text[begin:at].strip():
                    return text[begin:at]
                break
        else:
            return None
    return None


def math_equal(result: str, text: str) -> bool:
    r"""Whether a text's answer is the same mathematics as the result.

    The last box counts; without one, the sentence after the last "answer is", else the end of the
    text.

    >>> math_equal(r"\frac{1}{2}", r"The answer is $\boxed{0.5}$.")
    True
    """
    boxed = last_boxed(text)
    said = boxed if boxed is not None else after_answer(text) or text[-TAIL:]
    if _plain(said) == _plain(result):
        return True
    if not said.strip() or len(said) > TAIL:
        return False
    try:
        from math_verify import parse, verify
    except ModuleNotFoundError:
        raise InputError(
            "mathematics is compared by math-verify, which is missing; try: pip install math-verify"
        ) from None
    wrapped = f"$\\boxed{{{said}}}$" if boxed is not None else said
    try:
        return bool(verify(parse(f"$\\boxed{{{result}}}$"), parse(wrapped)))
    except Exception:  # whatever odd text made it fail, it is not the result
        return False


def after_answer(text: str) -> str:
    """The sentence after the last "answer is", if there is one.

    >>> after_answer("The final answer is 42. I hope my answer is correct.")
    ' 42'
    """
    said = re.split(r"answer is(?! correct)", text[-TAIL:])
    return re.split(r"\.\s+(?=[A-Z])", said[-1])[0] if len(said) > 1 else ""


def _plain(text: str) -> str:
    text = re.sub(r"\\(?:text|mbox|mathrm)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"\\[!,;: ]|\\left|\\right|[\s$]+", "", text).rstrip(".")


NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")


def last_number(text: str) -> str | None:
    """The last number of a text, as it is written.

    >>> last_number("so she pays $1,250.00 in all.")
    '$1,250.00'
    """
    found = NUMBER.findall(text[-TAIL:])
    return found[-1] if found else None


def same_number(one: str | None, other: str) -> bool:
    """Whether two numbers are the same, commas and currency aside.

    >>> same_number("$1,250.00", "1250")
    True
    """
    try:
        a, b = (Decimal(re.sub(r"[$,%\s]", "", x or "")) for x in (one, other))
    except InvalidOperation:
        return False
    return a == b


def extract_code(text: str) -> str:
    """The code of an answer: what is fenced, else all of it if it is Python, else from a line that
    looks like some on, up to the first that does not.

    >>> extract_code("Sure:\\ndef f(x):\\n    return x\\nThis returns x.")
    'def f(x):\\n    return x'
    """
    text = text[:LONGEST]
    blocks = [
        (tag.lower(), re.sub(rf"^{indent}", "", code, flags=re.M))
        for indent, tag, code in FENCE.findall(text)
    ]
    named = [code for tag, code in blocks if tag in PYTHON]
    fenced = named or [code for tag, code in blocks if not tag]
    fenced = [code for code in fenced if not code.lstrip().startswith(">>>")]
    if fenced:
        good = [code for code in fenced if _is_python(code)]
        return "\n".join(good or fenced)
    if _is_python(text):
        return text
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if CODE.match(line)]
    for start in starts[:TRIES]:
        code = _first_python(lines[start:])
        if code.strip():
            return code
    inline = INLINE.search(text)  # "Sure! def f(x): ..."
    return text[inline.start() :] if inline and not starts else text


CODE = re.compile(r"(?:from|import|def|async def|class|@)[ \w]")
INLINE = re.compile(r"\b(?:def|class) \w+")
LONGEST = 20_000
"""Characters of an answer that may be code: a function is a page or two."""
TRIES = 10


def _first_python(lines: list[str]) -> str:
    """The lines before the first that is not Python; where that is, the compiler says."""
    for _ in range(TRIES):
        try:
            compile("\n".join(lines), "<answer>", "exec", flags=ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            lines = lines[: min(error.lineno or 1, len(lines)) - 1]
        except (ValueError, MemoryError, RecursionError):
            return ""
        else:
            break
    return "\n".join(lines)


def _is_python(text: str) -> bool:
    try:
        compile(text, "<answer>", "exec", flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
