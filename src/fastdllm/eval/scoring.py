"""From a model's text to what it answers."""

import ast
import re
import warnings
from fractions import Fraction

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
    one, other = _plain(said), _plain(result)
    if one == other:
        return True
    if not said.strip() or len(said) > TAIL or _other_base(one, other):
        return False
    if DECIMAL.fullmatch(one) and DECIMAL.fullmatch(other):
        return same_number(one, other)
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
    said = re.split(r"(?i:answer(?: is(?! correct)|:))", text[-TAIL:])
    return re.split(r"\.\s+(?=[A-Z])", said[-1])[0] if len(said) > 1 else ""


def _plain(text: str) -> str:
    text = re.sub(r"\\(?:text|mbox|mathrm)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"\\[!,;: ]|\\left|\\right|[\s$]+", "", text).rstrip(".")


DECIMAL = re.compile(r"-?[\d,]*\.\d+")
BASE = re.compile(r"(.*)_\{?(\d+)\}?")


def _other_base(one: str, other: str) -> bool:
    """Whether two numbers are written in bases, and the bases or the digits differ.

    >>> _other_base("52_8", "52_{9}"), _other_base("52_8", "52_{8}"), _other_base("x_1", "7")
    (True, False, False)
    """
    bases = [BASE.fullmatch(x) for x in (one, other)]
    return all(bases) and bases[0].groups() != bases[1].groups()  # type: ignore[union-attr]


NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")


def last_number(text: str) -> str | None:
    """The last number of a text, as it is written.

    >>> last_number("so she pays $1,250.00 in all.")
    '$1,250.00'
    """
    found = NUMBER.findall(text[-TAIL:])
    return found[-1] if found else None


PLAIN = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:/\d+)?")
"""No exponents: a short one is a number that fills the memory."""


def same_number(one: str | None, other: str) -> bool:
    """Whether two numbers are the same, commas and currency aside.

    >>> same_number("$1,250.00", "1250")
    True
    """
    a, b = (re.sub(r"[$,%\s]", "", x or "") for x in (one, other))
    if not (PLAIN.fullmatch(a) and PLAIN.fullmatch(b)):
        return False
    try:
        return Fraction(a) == Fraction(b)
    except (ValueError, ZeroDivisionError):
        return False


def extract_code(text: str) -> str:
    """The code of an answer: what is fenced, else all of it if it is Python, else from a line that
    looks like some on, up to the first that does not.

    >>> extract_code("Sure:\\ndef f(x):\\n    return x\\nThis returns x.")
    'def f(x):\\n    return x'
    """
    text = _before_a_closing_fence(text[:LONGEST])
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


def _before_a_closing_fence(text: str) -> str:
    """Without a fence that only closes: one whose opening stood in the prompt."""
    fence = re.search(r"^[ \t]*```[ \t]*(\w*)", text, re.M)
    if fence is None or fence[1]:
        return text
    before = text[: fence.start()]
    begun = re.match(r"\s*\n?[ \t]+\S", before) or any(map(CODE.match, before.splitlines()))
    return before if begun else text


def essentials(code: str) -> str:
    """A program without what a script does besides: calls that print or ask, its own assertions,
    stray words, a `__main__` block, and a function begun again that says nothing.

    >>> essentials("def f(x):\\n    return x\\nprint(f(int(input())))\\nassert f(1) == 2\\nEND")
    'def f(x):\\n    return x'
    """
    try:
        tree = _parse(code)
        whole = {f.name for f in tree.body if isinstance(f, FUNCTION) and not _is_stub(f)}
        kept = [s for s in tree.body if not _is_besides(s, whole)]
        if len(kept) < len(tree.body):
            return ast.unparse(ast.Module(kept, []))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass  # as it is: what is wrong with it shows when it runs
    return code


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether there is nothing in it but words."""
    return all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in function.body
    )


def _is_besides(statement: ast.stmt, whole: set[str]) -> bool:
    """Whether a statement of the top is not part of what is asked for."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return statement.name in whole and _is_stub(statement)
        case ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return False
        case ast.Assert() | ast.AnnAssign(value=None):
            return True
        case ast.Expr() if not isinstance(statement.value, ast.Call):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    names = {
        node.func.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return bool(names & {"print", "input"})


CODE = re.compile(r"(?:from|import|def|async def|class|@)[ \w]")
INLINE = re.compile(r"\b(?:def|class) \w+")
LONGEST = 20_000
"""Characters of an answer that may be code: a function is a page or two."""
TRIES = 10


def _first_python(lines: list[str]) -> str:
    """The lines before the first that is not Python."""
    return "\n".join(lines[: python_lines(lines)])


def python_lines(lines: list[str]) -> int:
    """How many lines come before the first that is not Python; where that is, the compiler says."""
    count = len(lines)
    for _ in range(TRIES):
        try:
            compile("\n".join(lines[:count]), "<answer>", "exec", flags=ast.PyCF_ONLY_AST)
        except SyntaxError as error:
            count = min(error.lineno or 1, count) - 1
        except (ValueError, MemoryError, RecursionError):
            return 0
        else:
            break
    return count


def _parse(code: str) -> ast.Module:
    """Its tree; a doubtful escape such as '\\w' is the answer's business, whatever -W says here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _is_python(text: str) -> bool:
    try:
        _parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
