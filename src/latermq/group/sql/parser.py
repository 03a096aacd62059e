"""The parser of SQL92 filters. It builds a tree and checks that the operands are valid for their operators.

    any        = all { OR all }
    all        = equality { AND equality }
    equality   = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
    comparison = operand { ( ">" | ">=" | "<" | "<=" ) operand
                         | [ NOT ] BETWEEN operand AND operand
                         | [ NOT ] IN "(" string { "," string } ")"
                         | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) string }
    operand    = ( "+" | "-" | NOT ) operand | literal | property | "(" any ")"

NOT before an operand binds tighter than any comparison, as in RocketMQ: `NOT a = 3` means `(NOT a) = 3`.
"""

from dataclasses import dataclass

from latermq.group.sql.tokens import Token

MAX_DEPTH = 100  # a level takes up to five frames in the parser and one in evaluation; Python allows 1000
_MAX_LONG = 2**63 - 1
_MAX_LONG_DIGITS = 19
_ORDERS = frozenset({">", ">=", "<", "<="})


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message property: a string, or null if the message does not have the property."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant in the expression. None represents NULL."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Negative:
    """The result of a unary minus: the negated number, or null if the operand is not a numeric constant."""

    value: int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A node that is true, false or unknown."""

    height: int


Node = Property | Literal | Negative | Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth(Condition):
    """A property used as a condition: false if it exists, since a string is not a boolean, otherwise unknown."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Not(Condition):
    operand: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class AllOf(Condition):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf(Condition):
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal(Condition):
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered(Condition):
    """A comparison with `>`, `>=`, `<` or `<=`. Both sides are properties or numbers."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull(Condition):
    operand: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf(Condition):
    name: str
    values: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HasText(Condition):
    """CONTAINS, STARTSWITH or ENDSWITH."""

    operator: str
    operand: Node
    text: str
    negated: bool


def parse_sql(tokens: list[Token]) -> Node:
    """Parse tokens into a tree. Its root is a condition or one of the literals TRUE, FALSE and NULL."""
    return _Parser(tokens).parse()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        first = self._peek()
        root = self._any()
        if self._peek().kind != "end":
            raise self._unexpected("the end of the expression or an operator")
        return _as_condition(root, first)

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, kind: str, called: str) -> Token:
        if self._peek().kind != kind:
            raise self._unexpected(called)
        return self._next()

    def _unexpected(self, wanted: str) -> Exception:
        token = self._peek()
        if token.text.upper() == "LIKE":
            return token.error("LIKE is not supported", "Use CONTAINS, STARTSWITH or ENDSWITH")
        return token.error(f"expected {wanted}")

    def _any(self) -> Node:
        operands = [(self._peek(), self._all())]
        while self._peek().kind == "OR":
            self._next()
            operands.append((self._peek(), self._all()))
        return _join(AnyOf, operands)

    def _all(self) -> Node:
        operands = [(self._peek(), self._equality())]
        while self._peek().kind == "AND":
            self._next()
            operands.append((self._peek(), self._equality()))
        return _join(AllOf, operands)

    def _equality(self) -> Node:
        left = self._comparison()
        while self._peek().kind in ("=", "<>", "IS"):
            token = self._next()
            if token.kind == "IS":
                negated = self._peek().kind == "NOT"
                self._at += negated
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                made: Condition = IsNull(operand=left, height=_height(token, left))
            else:
                negated = token.kind == "<>"
                right = self._comparison()
                _check_equal(token, left, right)
                made = Equal(left=left, right=right, height=_height(token, left, right))
            left = Not(operand=made, height=_height(token, made)) if negated else made
        return left

    def _comparison(self) -> Node:
        left = self._operand()
        while True:
            token = self._peek()
            negated = token.kind == "NOT"
            if negated:
                token = self._peek(1)
            if token.kind in _ORDERS and not negated:
                self._next()
                left = _ordered(token, token.kind, left, self._operand())
            elif token.kind in ("BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"):
                self._at += 1 + negated
                left = self._predicate(token, left, negated)
            elif negated:
                self._next()
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _predicate(self, token: Token, left: Node, negated: bool) -> Condition:
        """Parse the rest of a BETWEEN, an IN or a text operator."""
        if token.kind == "BETWEEN":
            low = self._operand()
            self._expect("AND", "AND between the two bounds")
            return _between(token, left, low, self._operand(), negated)
        if token.kind == "IN":
            values = self._strings()
            if not isinstance(left, Property):
                raise token.error("IN requires a property", "Its left side must be a property name")
            return OneOf(name=left.name, values=values, negated=negated, height=1)
        text = self._string()
        return HasText(operator=token.kind, operand=left, text=text, negated=negated, height=_height(token, left))

    def _strings(self) -> frozenset[str]:
        self._expect("(", "'(' after IN")
        values = {self._string()}
        while self._peek().kind == ",":
            self._next()
            values.add(self._string())
        self._expect(")", "',' or ')'")
        return frozenset(values)

    def _string(self) -> str:
        return self._expect("string", "a string in single quotes").text[1:-1].replace("''", "'")

    def _operand(self) -> Node:
        token = self._peek()
        if token.kind not in ("+", "-", "NOT", "("):
            return self._primary()
        self._next()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep(token)
        inner = self._any() if token.kind == "(" else self._operand()
        self._depth -= 1
        if token.kind == "(":
            self._expect(")", "an operator or ')'")
        elif token.kind == "-":
            return _negative(inner)
        elif token.kind == "NOT":
            condition = _as_condition(inner, token)
            return Not(operand=condition, height=_height(token, condition))
        return inner

    def _primary(self) -> Node:
        token = self._peek()
        match token.kind:
            case "name":
                node: Node = Property(token.text)
            case "string":
                return Literal(self._string())
            case "integer":
                node = Literal(_integer(token))
            case "decimal":
                node = Literal(_decimal(token))
            case "TRUE" | "FALSE":
                node = Literal(token.kind == "TRUE")
            case "NULL":
                node = Literal(None)
            case _:
                raise self._unexpected("a property, a literal or '('")
        self._next()
        return node


def _join(join: type[AnyOf] | type[AllOf], operands: list[tuple[Token, Node]]) -> Node:
    """Join the operands of one keyword in one flat node, so that a thousand ORs do not nest a thousand levels."""
    if len(operands) == 1:
        return operands[0][1]
    parts: list[Node] = []
    for token, operand in operands:
        part = _as_condition(operand, token)
        parts.extend(part.parts if isinstance(part, join) else (part,))
    return join(parts=tuple(parts), height=_height(operands[0][0], *parts))


def _height(token: Token, *operands: Node) -> int:
    height = 1 + max(operand.height if isinstance(operand, Condition) else 0 for operand in operands)
    if height > MAX_DEPTH:
        raise _too_deep(token)
    return height


def _too_deep(token: Token) -> Exception:
    return token.error(
        f"nested deeper than {MAX_DEPTH} levels", "Combine conditions on one level instead of nesting them"
    )


def _is_boolean(node: Node) -> bool:
    return isinstance(node, Condition) or (isinstance(node, Literal) and isinstance(node.value, bool | None))


def _as_condition(node: Node, token: Token) -> Node:
    if isinstance(node, Property):
        return Truth(name=node.name, height=1)
    if not _is_boolean(node):
        raise token.error("expected a condition, found a value", "Compare it with another value")
    return node


def _check_equal(token: Token, left: Node, right: Node) -> None:
    if Literal(None) in (left, right):
        raise token.error("nothing equals NULL", "Write IS NULL or IS NOT NULL")
    match left, right:
        case Literal(value=bool()), Literal(value=other) if not isinstance(other, bool):
            raise token.error("a boolean cannot be compared with a string or a number")


def _ordered(token: Token, operator: str, left: Node, right: Node) -> Ordered:
    for side in (left, right):
        if _is_boolean(side) or (isinstance(side, Literal) and isinstance(side.value, str)):
            raise token.error("only numbers and properties can be ordered")
    return Ordered(operator=operator, left=left, right=right, height=_height(token, left, right))


def _between(token: Token, value: Node, low: Node, high: Node, negated: bool) -> Condition:
    lower, upper = ("<", ">") if negated else (">=", "<=")
    parts = (_ordered(token, lower, value, low), _ordered(token, upper, value, high))
    height = _height(token, *parts)
    if negated:
        return AnyOf(parts=parts, height=height)
    match low, high:
        case Literal(value=int() | float() as bottom), Literal(value=int() | float() as top) if bottom > top:
            raise token.error(f"no value is between {bottom} and {top}", "Write the lower bound first")
    return AllOf(parts=parts, height=height)


def _negative(operand: Node) -> Negative:
    value = operand.value if isinstance(operand, Literal | Negative) else None
    return Negative(-value if isinstance(value, int | float) and not isinstance(value, bool) else None)


def _integer(token: Token) -> int:
    digits = token.text.rstrip("lL")
    if len(digits) > 1 and digits[0] == "0":
        raise token.error("an integer must not have leading zeros")
    if len(digits) > _MAX_LONG_DIGITS or int(digits) > _MAX_LONG:
        raise token.error(f"an integer must not exceed {_MAX_LONG}")
    return int(digits)


def _decimal(token: Token) -> float:
    value = float(token.text)
    if value == float("inf"):
        raise token.error("the number is too large for a double")
    if value == 0 and any(digit in "123456789" for digit in token.text.lower().partition("e")[0]):
        raise token.error("the number is too small for a double")
    return value
