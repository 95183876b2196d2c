"""Small faults in the text of a module: one comparison, operator, term, number, index, condition, exit.

Left out is what no test can notice because no result depends on it: annotations, docstrings, messages,
decorators (bounds of caches, slots), `strict=` of `zip`, and the two sides of a tolerance: whether something
is divided by `1 - 1e-9` or multiplied with it, and whether a comparison with it includes the end.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
    "argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor",
}  # fmt: skip
# Calls whose arguments are of two kinds: the other way round they fail at once.
_TYPED = (
    "isinstance",
    "getattr",
    "setattr",
    "hasattr",
    "sorted",
    "map",
    "filter",
    "cast",
    "replace",
    "field",
)


@dataclass(frozen=True, slots=True)
class Change:
    """Lines and columns of a module's text, and what stands there in the mutant."""

    line: int
    column: int
    end_line: int
    end_column: int
    was: str
    now: str
    kind: str  # of fault: samples have as many of one as of another

    def applied(self, text: str) -> str:
        """The mutant's text, with as many lines. Columns count bytes, as those of `ast` do."""
        lines = text.encode().split(b"\n")
        begin = sum(len(line) + 1 for line in lines[: self.line - 1]) + self.column
        end = sum(len(line) + 1 for line in lines[: self.end_line - 1]) + self.end_column
        data = text.encode()
        now = self.now[:-1] + "\n" * (self.end_line - self.line) + self.now[-1:]
        return (data[:begin] + now.encode() + data[end:]).decode()


def changes(text: str) -> list[Change]:
    """Every change of a module, in order of its text. Annotations, docstrings and messages are left alone."""
    found, tree = [], ast.parse(text)
    tests = {id(node.test): node for node in ast.walk(tree) if isinstance(node, ast.If | ast.While)}
    for node in _expressions(tree):
        others = [*_others(node), *(_other_tests(tests[id(node)]) if id(node) in tests else ())]
        for kind, other in others:
            was = ast.get_source_segment(text, node) or ""
            now = f"({ast.unparse(other)})"
            where = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
            found.append(Change(*where, was, now, kind))
    return sorted(found, key=lambda change: (change.line, change.column, change.now))


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are computed: none of annotations, decorators, raised messages or f-strings."""
    skipped = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
    if isinstance(tree, ast.keyword) and tree.arg == "strict":
        return
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, skipped) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.expr) and not _near_one(child):
                yield child
            yield from _expressions(child)


def _near_one(node: ast.expr) -> bool:
    """Whether this is a tolerance: one and less than a millionth more or less."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.left, ast.Constant):
        return False
    little = isinstance(node.right, ast.Constant) and isinstance(node.right.value, float)
    return node.left.value == 1 and little and 0 < abs(ast.literal_eval(node.right)) < 1e-6


def _within_tolerance(node: ast.expr) -> bool:
    """Whether this is something times a tolerance."""
    return isinstance(node, ast.BinOp) and (_near_one(node.left) or _near_one(node.right))


def _others(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(kind of fault, what an expression can be changed into)."""
    if isinstance(node, ast.Compare) and any(map(_within_tolerance, (node.left, *node.comparators))):
        return
    if isinstance(node, ast.BinOp) and _within_tolerance(node):
        return
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        flipped = [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        yield "comparison", ast.Compare(node.left, flipped, node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield "operator", ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(node.right, ast.Constant):
            yield "term", node.left
        if isinstance(node.op, ast.Mult | ast.Div) and not isinstance(node.right, ast.Constant):
            yield "factor", node.left
    elif isinstance(node, ast.BoolOp):
        yield "condition", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield from (("clause", _without(node, place)) for place in range(len(node.values)))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "condition" if isinstance(node.op, ast.Not) else "operator", node.operand
    elif isinstance(node, ast.IfExp):
        yield "branch", ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "number", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "condition", ast.Constant(not node.value)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name | ast.BinOp):
        if isinstance(node.ctx, ast.Load) and not _is_type(node.value):
            shifted = ast.BinOp(node.slice, ast.Sub(), ast.Constant(1))
            yield "index", ast.Subscript(node.value, shifted, ast.Load())
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)


def _other_tests(node: ast.If | ast.While) -> Iterator[tuple[str, ast.expr]]:
    """What the condition of a statement can be changed into, beside what any expression can."""
    if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield "condition", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node.body[0], ast.Return | ast.Continue | ast.Break):
        yield "exit", ast.Constant(False)


def _without(node: ast.BoolOp, place: int) -> ast.expr:
    """A condition with one of its clauses left out."""
    left = [*node.values[:place], *node.values[place + 1 :]]
    return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _is_type(node: ast.expr) -> bool:
    """Whether a name looks like one of a type, as in `dict[Key, Value]`."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name[:1].isupper() or name in ("dict", "list", "tuple", "set", "frozenset", "type")


def _other_calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    plain = [item for item in node.args if not isinstance(item, ast.Starred | ast.GeneratorExp)]
    if name in _CALLS:
        func: ast.expr = (
            ast.Attribute(node.func.value, _CALLS[name], ast.Load())
            if isinstance(node.func, ast.Attribute)
            else ast.Name(_CALLS[name], ast.Load())
        )
        yield "extreme", ast.Call(func, node.args, node.keywords)
        if len(plain) == len(node.args) == 2:
            yield from (("extreme", item) for item in plain)
    elif len(plain) == len(node.args) == 2 and name not in _TYPED:
        yield "arguments", ast.Call(node.func, plain[::-1], node.keywords)
