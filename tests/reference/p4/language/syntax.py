"""What a P4_16 text says, before anything is known of its types: the nodes that the grammar makes."""

from __future__ import annotations

from dataclasses import dataclass

from reference.p4.language.tokens import At


@dataclass(frozen=True)
class _At:
    at: At


@dataclass(frozen=True)
class TypeName(_At):
    """A type as written: ``bit<32>``, ``headers_t``, ``register<bit<8>>``."""

    name: str
    width: Expression | None = None
    arguments: tuple[TypeName, ...] = ()


@dataclass(frozen=True)
class Expression(_At):
    """What has a value."""


@dataclass(frozen=True)
class Literal(Expression):
    """A number; without a width (``None``) it takes the type of what it stands beside."""

    value: int
    width: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class Truth(Expression):
    """``true`` or ``false``."""

    value: bool


@dataclass(frozen=True)
class NameOf(Expression):
    """A name."""

    name: str


@dataclass(frozen=True)
class MemberOf(Expression):
    """``base.name``."""

    base: Expression
    name: str


@dataclass(frozen=True)
class SliceOf(Expression):
    """``base[high:low]``."""

    base: Expression
    high: Expression
    low: Expression


@dataclass(frozen=True)
class UnaryOp(Expression):
    """``-x``, ``~x`` or ``!x``."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class BinaryOp(Expression):
    """Two operands and what stands between them."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Conditional(Expression):
    """``condition ? then : otherwise``."""

    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True)
class CastTo(Expression):
    """``(type) operand``."""

    type: TypeName
    operand: Expression


@dataclass(frozen=True)
class CallOf(Expression):
    """``target(arguments)``."""

    target: Expression
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class ListOf(Expression):
    """``{ a, b }``, or the parts of a select in parentheses."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class MaskedKey(Expression):
    """``value &&& mask`` of a select."""

    value: Expression
    mask: Expression


@dataclass(frozen=True)
class KeysetRange(Expression):
    """``low .. high`` of a select."""

    low: Expression
    high: Expression


@dataclass(frozen=True)
class Whatever(Expression):
    """``default`` or ``_`` of a select."""


@dataclass(frozen=True)
class Statement(_At):
    """What is done."""


@dataclass(frozen=True)
class Assignment(Statement):
    """``target = value;``; a call that stands alone has no target."""

    target: Expression | None
    value: Expression


@dataclass(frozen=True)
class BlockStatement(Statement):
    """``{ ... }``."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class IfStatement(Statement):
    """``if (condition) then else otherwise``."""

    condition: Expression
    then: Statement
    otherwise: Statement | None


@dataclass(frozen=True)
class ReturnStatement(Statement):
    """``return;``."""


@dataclass(frozen=True)
class ExitStatement(Statement):
    """``exit;``."""


@dataclass(frozen=True)
class VariableDeclaration(Statement):
    """``type name = value;``."""

    type: TypeName
    name: str
    value: Expression | None


@dataclass(frozen=True)
class ConstantDeclaration(Statement):
    """``const type name = value;``."""

    type: TypeName
    name: str
    value: Expression


@dataclass(frozen=True)
class ExternInstance(Statement):
    """``register<bit<32>>(16) name;``."""

    type: TypeName
    arguments: tuple[Expression, ...]
    name: str


@dataclass(frozen=True)
class ParameterDeclaration(_At):
    """``in bit<8> name``; the direction may be empty."""

    direction: str
    type: TypeName
    name: str


@dataclass(frozen=True)
class ActionDeclaration(Statement):
    """``action name(parameters) { ... }``."""

    name: str
    parameters: tuple[ParameterDeclaration, ...]
    body: BlockStatement


@dataclass(frozen=True)
class KeyElement(_At):
    """``expression : exact;`` of a table."""

    expression: Expression
    match: str


@dataclass(frozen=True)
class TableDeclaration(Statement):
    """A table; ``default`` is the call of its default action."""

    name: str
    keys: tuple[KeyElement, ...]
    actions: tuple[NameOf, ...]
    default: CallOf | None
    size: Expression | None


@dataclass(frozen=True)
class SelectCase(_At):
    """``keyset : state;``."""

    keyset: Expression
    state: str


@dataclass(frozen=True)
class Transition(_At):
    """Where a state goes on: one case without keys, or a select."""

    keys: tuple[Expression, ...]
    cases: tuple[SelectCase, ...]


@dataclass(frozen=True)
class StateDeclaration(_At):
    """``state name { ... transition ...; }``; without a transition it rejects."""

    name: str
    statements: tuple[Statement, ...]
    transition: Transition | None


@dataclass(frozen=True)
class FieldDeclaration(_At):
    """``type name;`` of a header or a struct."""

    type: TypeName
    name: str


@dataclass(frozen=True)
class TypeDeclaration(Statement):
    """``header``, ``struct`` (with fields) or ``typedef`` (of ``of``)."""

    kind: str
    name: str
    fields: tuple[FieldDeclaration, ...] = ()
    of: TypeName | None = None


@dataclass(frozen=True)
class ParserDeclaration(Statement):
    """``parser name(parameters) { states }``."""

    name: str
    parameters: tuple[ParameterDeclaration, ...]
    locals: tuple[Statement, ...]
    states: tuple[StateDeclaration, ...]


@dataclass(frozen=True)
class ControlDeclaration(Statement):
    """``control name(parameters) { locals apply { ... } }``."""

    name: str
    parameters: tuple[ParameterDeclaration, ...]
    locals: tuple[Statement, ...]
    body: BlockStatement


@dataclass(frozen=True)
class PackageInstance(Statement):
    """``V1Switch(A(), B()) main;``."""

    package: str
    parts: tuple[NameOf, ...]
    name: str
