"""The grammar of the subset of P4_16 that is read: recursive descent from words to nodes."""

from __future__ import annotations

from reference.p4.language import syntax as node
from reference.p4.language.reading import ExpressionReader
from reference.p4.language.tokens import KEYWORDS, tokens_of

_DIRECTIONS = ("in", "out", "inout")


def parsed(text: str, *, file: str = "the program") -> list[node.Statement]:
    """The declarations of a program.

    Args:
        text: The program.
        file: Its name, for messages.

    Raises:
        InputError: If it is not of the subset that is read, with line and column.

    Examples:
        >>> parsed("const bit<8> FEW = 3;")[0].name
        'FEW'
        >>> parsed("struct s { bit<8> x }", file="s.p4")
        Traceback (most recent call last):
        coppice.errors.InputError: s.p4:1:21: expected ';', found '}'.
    """
    return _Grammar(tokens_of(text, file=file)).program()


class _Grammar(ExpressionReader):
    def program(self) -> list[node.Statement]:
        found = []
        while self.word.kind != "end":
            found.append(self.declaration())
        return found

    def declaration(self) -> node.Statement:
        at, text = self.at, self.word.text
        if text in ("header", "struct"):
            return self.fields_of(text)
        if text == "typedef":
            self.place += 1
            of = self.type_name()
            name = self.name()
            self.expect(";")
            self.types.add(name)
            return node.TypeDeclaration(at, "typedef", name, of=of)
        if text == "const":
            return self.constant()
        if text == "parser":
            return self.parser()
        if text == "control":
            return self.control()
        if self.word.kind == "name" and text not in KEYWORDS:
            return self.package()
        self.unexpected("a declaration of header, struct, typedef, const, parser, control or the package")
        raise AssertionError

    def fields_of(self, kind: str) -> node.TypeDeclaration:
        at = self.at
        self.place += 1
        name = self.name()
        self.expect("{")
        fields = self.until("}", self.field)
        self.types.add(name)
        return node.TypeDeclaration(at, kind, name, fields)

    def field(self) -> node.FieldDeclaration:
        at, of = self.at, self.type_name()
        name = self.name()
        self.expect(";")
        return node.FieldDeclaration(at, of, name)

    def constant(self) -> node.ConstantDeclaration:
        at = self.at
        self.expect("const")
        of, name = self.type_name(), self.name()
        self.expect("=")
        value = self.expression()
        self.expect(";")
        return node.ConstantDeclaration(at, of, name, value)

    def parameters(self) -> tuple[node.ParameterDeclaration, ...]:
        self.expect("(")
        return self.separated(")", self.parameter)

    def parameter(self) -> node.ParameterDeclaration:
        at, direction = self.at, ""
        if self.word.text in _DIRECTIONS:
            direction = self.word.text
            self.place += 1
        return node.ParameterDeclaration(at, direction, self.type_name(), self.name())

    def parser(self) -> node.ParserDeclaration:
        at = self.at
        self.expect("parser")
        name, parameters = self.name(), self.parameters()
        self.expect("{")
        local: list[node.Statement] = []
        while self.word.text != "state":
            local.append(self.local())
        states = self.until("}", self.state)
        return node.ParserDeclaration(at, name, parameters, tuple(local), states)

    def state(self) -> node.StateDeclaration:
        at = self.at
        self.expect("state")
        name = self.name()
        self.expect("{")
        statements: list[node.Statement] = []
        while self.word.text not in ("transition", "}"):
            statements.append(self.statement())
        transition = self.transition() if self.word.text == "transition" else None
        self.expect("}")
        return node.StateDeclaration(at, name, tuple(statements), transition)

    def transition(self) -> node.Transition:
        at = self.at
        self.expect("transition")
        if not self.taken("select"):
            case = node.SelectCase(self.at, node.Whatever(self.at), self.name())
            self.expect(";")
            return node.Transition(at, (), (case,))
        self.expect("(")
        keys = self.separated(")", self.expression)
        self.expect("{")
        return node.Transition(at, keys, self.until("}", self.select_case))

    def select_case(self) -> node.SelectCase:
        at = self.at
        if self.taken("("):
            keyset: node.Expression = node.ListOf(at, self.separated(")", self.keyset))
        else:
            keyset = self.keyset()
        self.expect(":")
        state = self.name()
        self.expect(";")
        return node.SelectCase(at, keyset, state)

    def keyset(self) -> node.Expression:
        at = self.at
        if self.taken("default") or self.taken("_"):
            return node.Whatever(at)
        value = self.expression()
        if self.taken("&&&"):
            return node.MaskedKey(at, value, self.expression())
        if self.taken(".."):
            return node.KeysetRange(at, value, self.expression())
        return value

    def control(self) -> node.ControlDeclaration:
        at = self.at
        self.expect("control")
        name, parameters = self.name(), self.parameters()
        self.expect("{")
        local: list[node.Statement] = []
        while not self.taken("apply"):
            local.append(self.local())
        body = self.block()
        self.expect("}")
        return node.ControlDeclaration(at, name, parameters, tuple(local), body)

    def local(self) -> node.Statement:
        text = self.word.text
        if text == "action":
            return self.action()
        if text == "table":
            return self.table()
        if text == "const":
            return self.constant()
        if text in ("register", "counter"):
            return self.instance()
        return self.variable()

    def instance(self) -> node.ExternInstance:
        at, of = self.at, self.type_name()
        self.expect("(")
        arguments = self.separated(")", self.expression)
        name = self.name()
        self.expect(";")
        return node.ExternInstance(at, of, arguments, name)

    def action(self) -> node.ActionDeclaration:
        at = self.at
        self.expect("action")
        return node.ActionDeclaration(at, self.name(), self.parameters(), self.block())

    def table(self) -> node.TableDeclaration:
        at = self.at
        self.expect("table")
        name = self.name()
        self.expect("{")
        keys: tuple[node.KeyElement, ...] = ()
        actions: tuple[node.NameOf, ...] = ()
        default: node.CallOf | None = None
        size: node.Expression | None = None
        while not self.taken("}"):
            if self.taken("key"):
                self.expect("=")
                self.expect("{")
                keys = self.until("}", self.key)
            elif self.taken("actions"):
                self.expect("=")
                self.expect("{")
                actions = self.until("}", self.action_name)
            elif self.taken("default_action"):
                default = self.default_action()
            elif self.taken("size"):
                self.expect("=")
                size = self.expression()
                self.expect(";")
            else:
                self.unexpected("key, actions, default_action or size")
        return node.TableDeclaration(at, name, keys, actions, default, size)

    def key(self) -> node.KeyElement:
        at, expression = self.at, self.expression()
        self.expect(":")
        match = self.name()
        self.expect(";")
        return node.KeyElement(at, expression, match)

    def action_name(self) -> node.NameOf:
        at = self.at
        name = self.name()
        self.expect(";")
        return node.NameOf(at, name)

    def default_action(self) -> node.CallOf:
        self.expect("=")
        at = self.at
        target = node.NameOf(at, self.name())
        self.expect("(")
        arguments = self.separated(")", self.expression)
        self.expect(";")
        return node.CallOf(at, target, arguments)

    def package(self) -> node.PackageInstance:
        at, package = self.at, self.name()
        self.expect("(")
        parts = self.separated(")", self.part)
        name = self.name()
        self.expect(";")
        return node.PackageInstance(at, package, parts, name)

    def part(self) -> node.NameOf:
        at, name = self.at, self.name()
        self.expect("(")
        self.expect(")")
        return node.NameOf(at, name)

    # ---- statements

    def block(self) -> node.BlockStatement:
        at = self.at
        self.expect("{")
        return node.BlockStatement(at, self.until("}", self.statement))

    def statement(self) -> node.Statement:
        at, text = self.at, self.word.text
        if text == "{":
            return self.block()
        if self.taken("if"):
            self.expect("(")
            condition = self.expression()
            self.expect(")")
            then = self.statement()
            return node.IfStatement(at, condition, then, self.statement() if self.taken("else") else None)
        if self.taken("return"):
            self.expect(";")
            return node.ReturnStatement(at)
        if self.taken("exit"):
            self.expect(";")
            return node.ExitStatement(at)
        if text == "const":
            return self.constant()
        if text in self.types and self.ahead(1) != ".":
            return self.variable()
        first = self.postfix()
        if self.taken("="):
            value = self.expression()
            self.expect(";")
            return node.Assignment(at, first, value)
        self.expect(";")
        return node.Assignment(at, None, first)

    def variable(self) -> node.VariableDeclaration:
        at, of = self.at, self.type_name()
        name = self.name()
        value = self.expression() if self.taken("=") else None
        self.expect(";")
        return node.VariableDeclaration(at, of, name, value)
