"""The language of score functions, read from docs/guide/score_functions.md and evaluated by NumPy:
what texts mean, without Fulmen."""

import math
import re

import numpy as np

TOKEN = re.compile(
    r"\s*(?:#[^\n]*\n\s*)*(\d+\.\d*(?:e-?\d+)?|\d+e-?\d+|\.\d+|\d+|[A-Za-z_]\w*|"
    r"//|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&^|!~(),;=\[\]])"
)
# From the loosest to the tightest.
LEVELS = [
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "//", "%"),
]
erf = np.vectorize(math.erf, otypes=[np.float64])
CONSTANTS = {"inf": np.inf, "nan": np.nan, "true": True, "false": False}


def tokens(text):
    at, found = 0, []
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match, f"no token at {text[at : at + 20]!r}"
        found.append(match[1])
        at = match.end()
    return [*found, ""]


def is_float(x):
    return np.asarray(x).dtype.kind == "f"


def is_bool(x):
    return np.asarray(x).dtype.kind == "b"


class Evaluation:
    """One text, for arrays that broadcast."""

    def __init__(self, text, given, tensors, float_type=np.float64):
        self.tokens, self.at = tokens(text), 0
        self.float_type = float_type
        self.names = {name: self.typed(value) for name, value in given.items()}
        self.tensors = tensors

    def typed(self, value):
        value = np.asarray(value)
        if value.dtype.kind in "iu":
            return np.clip(value.astype(np.int64), -(2**31), 2**31 - 1).astype(np.int32)
        return value if value.dtype.kind == "b" else value.astype(self.float_type)

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead]

    def take(self, wanted=None):
        token = self.tokens[self.at]
        assert wanted in (None, token), f"{token!r} where {wanted!r} is expected"
        self.at += 1
        return token

    def function(self):
        with np.errstate(all="ignore"):
            while self.peek(1) == "=":
                name = self.take()
                assert name not in self.names and name not in self.tensors
                self.take("=")
                self.names[name] = self.expression()
                self.take(";")
            result = self.expression()
            self.take("")
            return result

    def expression(self, level=0):
        if level == len(LEVELS):
            return self.unary()
        value = self.expression(level + 1)
        while self.peek() in LEVELS[level]:
            op = self.take()
            value = self.binary(op, value, self.expression(level + 1))
        return value

    def unary(self):
        op = self.peek()
        if op not in ("-", "!", "~"):
            return self.primary()
        self.take()
        value = self.unary()
        if op == "!":
            assert is_bool(value)
            return ~value
        assert not is_bool(value)
        if op == "-":
            return -value
        assert not is_float(value)
        return ~value

    def floats(self, *values):
        assert not any(map(is_bool, values))
        return [np.asarray(one).astype(self.float_type) for one in values]

    def joined(self, *values):
        assert not any(map(is_bool, values))
        return self.floats(*values) if any(map(is_float, values)) else values

    def binary(self, op, a, b):
        if op == "/":
            a, b = self.floats(a, b)
            return a / b
        if op in ("//", "%"):
            assert not any(is_float(one) or is_bool(one) for one in (a, b))
            safe = np.where(b == 0, 1, b).astype(np.int64)
            wide = a.astype(np.int64)
            value = wide // safe if op == "//" else wide % safe
            return np.where(b == 0, 0, value).astype(np.int32)
        if op in ("&&", "||"):
            assert is_bool(a) and is_bool(b)
            return a & b if op == "&&" else a | b
        if op in ("&", "^", "|"):
            assert is_bool(a) == is_bool(b) and not is_float(a) and not is_float(b)
            return {"&": np.bitwise_and, "^": np.bitwise_xor, "|": np.bitwise_or}[op](a, b)
        if op in ("<<", ">>"):
            assert not any(is_float(one) or is_bool(one) for one in (a, b))
            return (np.left_shift if op == "<<" else np.right_shift)(a, b & 31)
        a, b = self.joined(a, b)
        return {
            "+": np.add,
            "-": np.subtract,
            "*": np.multiply,
            "<": np.less,
            "<=": np.less_equal,
            ">": np.greater,
            ">=": np.greater_equal,
            "==": np.equal,
            "!=": np.not_equal,
        }[op](a, b)

    def primary(self):
        token = self.take()
        if token == "(":
            value = self.expression()
            self.take(")")
            return value
        if token[0].isdigit() or token[0] == ".":
            if token.isdigit():
                assert int(token) <= 2**31 - 1
                return np.int32(token)
            return self.float_type(token)
        if self.peek() == "(":
            return self.call(token)
        if token in CONSTANTS:
            value = CONSTANTS[token]
            return np.bool_(value) if isinstance(value, bool) else self.float_type(value)
        if token in self.names:
            return self.names[token]
        return self.load(token)

    def listed(self, end):
        values = []
        while self.peek() != end:
            values.append(self.expression())
            if self.peek() != end:
                self.take(",")
        self.take(end)
        return values

    def load(self, name):
        tensor = self.typed(self.tensors[name])
        if tensor.ndim == 0:
            return tensor
        self.take("[")
        indices = self.listed("]")
        assert len(indices) == tensor.ndim
        assert not any(is_float(one) or is_bool(one) for one in indices)
        inside = np.bool_(True)
        for index, size in zip(indices, tensor.shape, strict=True):
            inside = inside & (index >= 0) & (index < size)
        safe = tuple(np.where(inside, one, 0) for one in indices)
        return np.where(inside, tensor[safe], tensor.dtype.type(0))

    def call(self, name):
        self.take("(")
        args = self.listed(")")
        if name in ("int", "float", "bool"):
            return self.converted(name, *args)
        if name == "select":
            condition, a, b = args
            assert is_bool(condition)
            if not (is_bool(a) and is_bool(b)):
                a, b = self.joined(a, b)
            return np.where(condition, a, b)
        if name in ("min", "max"):
            return (np.minimum if name == "min" else np.maximum)(*self.joined(*args))
        if name == "abs":
            assert not is_bool(args[0])
            return np.abs(args[0])
        args = self.floats(*args)
        if name in ("exp", "exp2", "log", "log2", "tanh", "sqrt", "sin", "cos", "isnan"):
            return getattr(np, name)(*args)
        if name in ("floor", "ceil", "trunc"):
            return getattr(np, name)(*args)
        return {
            "round": np.rint,
            "pow": np.power,
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
            "erf": erf,
        }[name](*args)

    def converted(self, name, value):
        if name == "bool":
            return np.asarray(value) != 0
        if name == "float" or not is_float(value):
            return np.asarray(value).astype(self.float_type if name == "float" else np.int32)
        bounded = np.clip(np.nan_to_num(np.trunc(value), nan=0.0), -(2**31), 2**31 - 1)
        return bounded.astype(np.int64).astype(np.int32)


def evaluate(text, given, tensors, float_type=np.float64):
    """text for arrays by name that broadcast: given, and tensors that are indexed."""
    return Evaluation(text, given, tensors, float_type).function()
