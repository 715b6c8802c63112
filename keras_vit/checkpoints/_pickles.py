"""What a pickle says, without running it: plain values and the names of the
functions that it would have called.

Python's own unpickler, and PyTorch's, can be made to hang or to crash by
values that hold themselves many times over; here only text and numbers are
keys, and a name stays a name.
"""

import dataclasses
import pickletools

_KEYS = (str, int)
_MOST = 2**20  # opcodes, of which a tensor takes some 40; a second or two
_PLAIN = {  # these push their argument
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "INT",
    "LONG",
    "BINFLOAT",
    "FLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "UNICODE",
    "BINSTRING",
    "SHORT_BINSTRING",
    "STRING",
    "BINBYTES",
    "SHORT_BINBYTES",
}
_MADE = {  # these push what they make
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}
_PUT = ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE")
_GET = ("BINGET", "LONG_BINGET", "GET")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SKIPPED = ("PROTO", "FRAME")


class WouldRunError(Exception):
    """A pickle that would import or call something else than weights need.

    Args:
        name: String. What it would import, "module.name".
    """

    def __init__(self, name):
        super().__init__(f"it would import {name}")
        self.name = name


@dataclasses.dataclass(frozen=True, eq=False)
class Name:
    """What a pickle would have imported."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """What it would have called."""

    name: str
    arguments: tuple


def read(file, persistent, allowed):
    """Returns the value of the pickle that begins where a file is.

    Args:
        file: An open file, which is then at the pickle's end.
        persistent: Function that returns what stands for a persistent id.
        allowed: Function that says whether a pickle of plain weights has a
            name, `"module.name"`, in it.

    Raises:
        ValueError: if it is no pickle, or of more than plain values.
    """
    machine = _Machine(persistent, allowed)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if count > _MOST:
                raise ValueError("a pickle of more than any weights need")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"a pickle that is broken: {type(error).__name__} {error}"
        ) from error
    raise ValueError("a pickle without an end")


class _Machine:
    """Pickle's stack machine, of the opcodes that plain values need."""

    def __init__(self, persistent, allowed):
        self.stack, self.marks, self.memo = [], [], {}
        self.persistent, self.allowed = persistent, allowed

    def step(self, name, argument):
        stack = self.stack
        if name in _PLAIN:
            stack.append(argument)
        elif name in _MADE:
            stack.append(_MADE[name]())
        elif name in _PUT:
            index = len(self.memo) if name == "MEMOIZE" else argument
            self.memo[index] = stack[-1]
        elif name in _GET:
            stack.append(self.memo[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack.append(tuple([self.pop() for _ in range(count)][::-1]))
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name not in _SKIPPED:
            self.join(name, argument)

    def pop(self):
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError("nothing before a mark")
        return self.stack.pop()

    def since_mark(self):
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def join(self, name, argument):
        """The opcodes that take what is on the stack."""
        stack = self.stack
        if name == "TUPLE":
            stack.append(tuple(self.since_mark()))
        elif name == "LIST":
            stack.append(self.since_mark())
        elif name == "DICT":
            found = self.since_mark()
            stack.append({})
            self.store(stack[-1], found)
        elif name in ("APPENDS", "ADDITEMS"):
            found = self.since_mark()
            stack[-1].extend(found)
        elif name == "APPEND":
            found = self.pop()
            stack[-1].append(found)
        elif name == "SETITEMS":
            found = self.since_mark()
            self.store(stack[-1], found)
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            self.store(stack[-1], [key, value])
        elif name == "GLOBAL":
            stack.append(self.imported(argument.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            last, first = self.pop(), self.pop()
            stack.append(self.imported(".".join((first, last))))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, called = self.pop(), self.pop()
            stack.append(self.called(called, arguments))
        elif name == "BUILD":
            self.pop()  # the attributes of an object, such as `_metadata`
        elif name == "BINPERSID":
            stack.append(self.persistent(self.pop()))
        else:
            raise ValueError(f"a pickle of more than plain values ({name})")

    def store(self, target, items):
        if type(target) is not dict or len(items) % 2:
            raise TypeError("items of no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, _KEYS):
                raise ValueError(f"a name that is a {type(key).__name__}")
            if key in target:
                raise ValueError(f"{key!r} is there twice")
            target[key] = value

    def imported(self, name):
        if not self.allowed(name):
            raise WouldRunError(name)
        return Name(name)

    def called(self, called, arguments):
        if type(called) is not Name or type(arguments) is not tuple:
            raise TypeError("a call of nothing")
        if called.name == "collections.OrderedDict":
            made = {}
            for pair in arguments[0] if arguments else ():
                self.store(made, list(pair))
            return made
        return Call(called.name, arguments)
