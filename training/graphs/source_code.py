"""Python sources as a graph by name: what is defined where, what it uses, and what its names stand for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

KINDS = ("module", "class", "function")
RELATIONS = ("call", "containment", "import", "inheritance")
MODULE, CLASS, FUNCTION = range(3)
CALL, CONTAINMENT, IMPORT, INHERITANCE = range(4)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LEAVES = (ast.Constant, ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
_DEPTH = 8  # of re-exports and base classes that are followed


@dataclass(eq=False)
class Definition:
    """A module, class or function.

    Args:
        number: its vertex.
        kind: one of `KINDS`, by position.
        name: its own name; a module's dotted path.
        parent: what it is defined in; None for a module.
        package: of a module, the dotted path that relative imports begin at.
    """

    number: int
    kind: int
    name: str
    parent: Definition | None
    package: str = ""
    words: Counter[str] = field(default_factory=Counter)
    inside: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: module, name in it or ""
    imports: list[tuple[str, str]] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)
    bases: list[list[str]] = field(default_factory=list)

    @property
    def module(self) -> Definition:
        """The module that it stands in."""
        return self if self.parent is None else self.parent.module


@cache
def words(identifier: str) -> tuple[str, ...]:
    """Sub-words of an identifier in lower case, of two letters or more: `readHTTPHeader_2` gives read, http, header."""
    return tuple(word.lower() for word in _WORD.findall(identifier) if len(word) > 1)


class Sources:
    """Definitions of modules that are read one after the other, and the edges between them.

    Names are resolved as far as the text allows: definitions of the module, imported names through re-exports, and
    methods of `self` and `cls` through base classes. What depends on values (`x.close()`) is left out.
    """

    def __init__(self) -> None:
        self.definitions: list[Definition] = []
        self._modules: dict[str, Definition] = {}

    def read(self, name: str, is_package: bool, tree: ast.Module) -> None:
        """Take in a parsed module, given by its dotted path."""
        package = name if is_package else name.rpartition(".")[0]
        module = self._define(MODULE, name, None, package)
        self._modules[name] = module
        self._walk(tree, module)

    def edges(self) -> Iterator[tuple[int, int, int]]:
        """Sender, receiver and relation (position in `RELATIONS`) of each use, in order of the text; repeated uses
        repeat. Edges go from caller to called, container to contained, importer to imported and subclass to base."""
        for definition in self.definitions:
            if definition.parent is not None:
                yield definition.parent.number, definition.number, CONTAINMENT
            for chain in definition.calls:
                yield from self._edge(definition, self._resolve(definition, chain), CALL)
            for module, name in definition.imports:
                yield from self._edge(
                    definition, self._modules.get(f"{module}.{name}", self._modules.get(module)), IMPORT
                )
            for chain in definition.bases:
                yield from self._edge(definition, self._resolve(definition, chain), INHERITANCE)

    @staticmethod
    def _edge(sender: Definition, receiver: Definition | None, relation: int) -> Iterator[tuple[int, int, int]]:
        if receiver is not None:
            yield sender.number, receiver.number, relation

    def _define(self, kind: int, name: str, parent: Definition | None, package: str = "") -> Definition:
        found = Definition(len(self.definitions), kind, name, parent, package)
        self.definitions.append(found)
        if parent is not None:
            parent.inside.setdefault(name, found)
            found.words.update(words(name))
        return found

    def _walk(self, node: ast.AST, scope: Definition) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name):
                scope.words.update(words(child.id))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._enter(child, scope)
            elif isinstance(child, ast.Import | ast.ImportFrom):
                _bind(child, scope)
            elif not isinstance(child, _LEAVES):
                _note(child, scope)
                self._walk(child, scope)

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Definition) -> None:
        found = self._define(CLASS if isinstance(node, ast.ClassDef) else FUNCTION, node.name, scope)
        if isinstance(node, ast.ClassDef):
            found.bases.extend(chain for base in node.bases for chain in _chain(base))
        self._walk(node, found)

    def _resolve(self, scope: Definition, chain: list[str], depth: int = _DEPTH) -> Definition | None:
        head, *rest = chain
        found = _enclosing_class(scope) if head in ("self", "cls") and rest else self._look_up(scope, head, depth)
        for name in rest:
            found = None if found is None else self._member(found, name, depth)
        return None if found is scope and found.kind == CLASS else found  # `class Error(Error)` is a base elsewhere

    def _look_up(self, scope: Definition, name: str, depth: int) -> Definition | None:
        at: Definition | None = scope
        while at is not None:
            if at is scope or at.kind != CLASS:  # names of a class are not seen by its methods
                found = self._member(at, name, depth) if at.kind == MODULE else self._own(at, name, depth)
                if found is not None:
                    return found
            at = at.parent
        return None

    def _member(self, of: Definition, name: str, depth: int) -> Definition | None:
        """What `of.name` is: of a module with what it imports, of a class with what it inherits."""
        found = self._own(of, name, depth)
        if found is not None or not depth:
            return found
        if of.kind == MODULE:
            return self._modules.get(f"{of.name}.{name}") or self._starred(of, name, depth)
        for chain in of.bases:
            base = self._resolve(of.parent or of, chain, depth - 1)
            found = self._member(base, name, depth - 1) if base is not None else None
            if found is not None:
                return found
        return None

    def _own(self, of: Definition, name: str, depth: int) -> Definition | None:
        if name in of.inside:
            return of.inside[name]
        if name not in of.imported or not depth:
            return None
        module, inner = of.imported[name]
        found = self._modules.get(module)
        return found if not inner or found is None else self._member(found, inner, depth - 1)

    def _starred(self, of: Definition, name: str, depth: int) -> Definition | None:
        for star in of.stars:
            found = self._member(self._modules[star], name, depth - 1) if star in self._modules else None
            if found is not None:
                return found
        return None


def _note(node: ast.AST, scope: Definition) -> None:
    """The words of a node's own, and what it calls."""
    if isinstance(node, ast.Attribute):
        scope.words.update(words(node.attr))
    elif isinstance(node, ast.arg | ast.keyword):
        scope.words.update(words(node.arg or ""))
    elif isinstance(node, ast.Call):
        scope.calls.extend(_chain(node.func))


def _chain(expression: ast.expr) -> Iterator[list[str]]:
    """`a.b.c` as its names; nothing for what does not begin with a name."""
    names = []
    while isinstance(expression, ast.Attribute):
        names.append(expression.attr)
        expression = expression.value
    if isinstance(expression, ast.Name):
        yield [expression.id, *reversed(names)]


def _enclosing_class(scope: Definition) -> Definition | None:
    at: Definition | None = scope
    while at is not None and at.kind != CLASS:
        at = at.parent
    return at


def _bind(node: ast.Import | ast.ImportFrom, scope: Definition) -> None:
    """Note what an import brings and what it calls it."""
    base = _absolute(node, scope.module.package) if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        if isinstance(node, ast.Import):
            scope.imports.append((alias.name, ""))
            bound = alias.name if alias.asname else alias.name.partition(".")[0]
            scope.imported[alias.asname or bound] = (bound, "")
        elif alias.name == "*":
            scope.imports.append((base, ""))
            scope.stars.append(base)
        else:
            scope.imports.append((base, alias.name))
            scope.imported[alias.asname or alias.name] = (base, alias.name)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parts = package.split(".") if node.level else []
    kept = parts[: len(parts) - max(node.level - 1, 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])
