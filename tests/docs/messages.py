"""Find all messages that a package's errors can have, by reading its source.

A message is an argument of the error's class, with `…` for each value that is filled in at run
time. If the message comes from a variable, a table or a function, all its possible values count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ANYTHING = "…"


def messages(package: Path, classes: dict[str, int]) -> set[str]:
    """Return the messages of these classes. `classes`: name -> position of the message argument."""
    found: set[str] = set()
    for path in sorted(package.rglob("*.py")):
        module = _Module(ast.parse(path.read_text()))
        for scope, call in module.calls(set(classes)):
            argument = call.args[classes[_name(call.func)]]
            found |= set(module.texts(argument, scope))
    return found - {ANYTHING}  # text of another program or another error


@dataclass(frozen=True, slots=True)
class _Module:
    tree: ast.Module

    def calls(self, names: set[str]) -> Iterator[tuple[ast.AST, ast.Call]]:
        """Yield the calls of these names, each with the function that contains it."""
        functions = [each for each in ast.walk(self.tree) if isinstance(each, ast.FunctionDef)]
        for function in functions:
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _name(node.func) in names:
                    yield function, node

    def texts(self, node: ast.expr, scope: ast.AST) -> Iterator[str]:
        """Yield all possible values of an expression."""
        if isinstance(node, ast.Constant):
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(self._part(part, scope) for part in node.values)
        elif isinstance(node, ast.BoolOp):
            for each in node.values:
                yield from self.texts(each, scope)
        elif isinstance(node, ast.Name):
            yield from self._of_name(node.id, scope)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, scope)
        else:
            yield ANYTHING

    def _part(self, part: ast.expr, scope: ast.AST) -> str:
        """Return a part of an f-string: the value of a module constant, otherwise `…`."""
        if isinstance(part, ast.FormattedValue):
            known = isinstance(part.value, ast.Name) and part.value.id.lstrip("_").isupper()
            return next(iter(self.texts(part.value, scope))) if known else ANYTHING
        assert isinstance(part, ast.Constant)
        return str(part.value)

    def _of_name(self, name: str, scope: ast.AST) -> Iterator[str]:
        values = [*_assigned(name, scope), *_assigned(name, self.tree, deep=False)]
        for value in values:
            yield from self.texts(value, scope)
        for loop in _loops(name, scope):
            yield from self._of_loop(name, loop, scope)
        if not values:
            yield ANYTHING

    def _of_loop(self, name: str, loop: ast.For, scope: ast.AST) -> Iterator[str]:
        """Yield the values of a loop variable in `for part, code, why in TABLE`."""
        assert isinstance(loop.target, ast.Tuple)
        assert isinstance(loop.iter, ast.Name)
        at = [_name(each) for each in loop.target.elts].index(name)
        (table,) = _assigned(loop.iter.id, self.tree, deep=False)
        assert isinstance(table, ast.Tuple)
        for row in table.elts:
            assert isinstance(row, ast.Tuple)
            yield from self.texts(row.elts[at], scope)

    def _of_call(self, call: ast.Call, scope: ast.AST) -> Iterator[str]:
        """Yield the results of `TABLE.get(code, otherwise)` or of a function of the module."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get":
            for table in self._tables(_name(call.func.value), scope):
                for value in table.values:
                    yield from self.texts(value, scope)
            yield from self.texts(call.args[1], scope)
            return
        for function in self.tree.body:
            if isinstance(function, ast.FunctionDef) and function.name == _name(call.func):
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and node.value is not None:
                        yield from self.texts(node.value, function)
                return
        yield ANYTHING

    def _tables(self, name: str, scope: ast.AST) -> Iterator[ast.Dict]:
        for value in [*_assigned(name, scope), *_assigned(name, self.tree, deep=False)]:
            if isinstance(value, ast.Dict):
                yield value


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _assigned(name: str, inside: ast.AST, *, deep: bool = True) -> Iterator[ast.expr]:
    for node in ast.walk(inside) if deep else ast.iter_child_nodes(inside):
        if isinstance(node, ast.Assign) and [_name(each) for each in node.targets] == [name]:
            yield node.value


def _loops(name: str, inside: ast.AST) -> Iterator[ast.For]:
    for node in ast.walk(inside):
        targets = node.target if isinstance(node, ast.For) else None
        if isinstance(targets, ast.Tuple) and name in map(_name, targets.elts):
            assert isinstance(node, ast.For)
            yield node
