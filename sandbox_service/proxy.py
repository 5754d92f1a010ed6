"""Tests in one cage, the program in another: what crosses the channel between them.

    tests: Handle(add)(1, [2])  --("call", add, (1, [2]), {})-->  program: add(1, [2])
                                <--("value", 3, None)-----------

Both ends send frames (length, codec value). What has no plain form stays where it is and crosses
as a number: the other side gets a `Handle`, may call it, read its public attributes and use its
operators. The tests reach all that the program defines, the program what the tests passed to it.

A handle never equals plain data, whatever its `__eq__` says, has no order and no arithmetic with it
(`abs(f() - 3) < 1e-6` would hand the 3 to the program's `__sub__`), and `in` looks at the items on
the tests' side: an object that equals everything would pass every test. Otherwise the answers of an
object's methods, `len` or `bool` are the program's word, like any value. Lists, dicts, sets and
arrays that a call changed are changed on the tests' side as well.
Names that begin with "_" and what frames, code and modules hold cannot be reached through a handle:
neither side reads the other's text. Of what the tests handed out the program may change data, no
method, class or function, and it may not call what reads or runs text (`getattr`, `eval`, `open`).

What is lost: two arguments that are one list arrive as two; exceptions arrive as the nearest
built-in class; classes of the program cannot be subclassed or caught. Standard library only.
"""

from __future__ import annotations

import _thread
import builtins
import operator
import os
import struct
import sys
import types

from sandbox_service import arrays, codec
from sandbox_service.lean import Any, Callable, NoReturn

_read = os.read
_write = os.write
_exit = os._exit
_getpid = os.getpid
_mro_of = type.__dict__["__mro__"].__get__
_type_name = type.__dict__["__name__"].__get__
_LENGTH = struct.Struct("<I")
_REPLIES = ("value", "error", "module")
_HIDDEN_PREFIXES = ("_", "gi_", "cr_", "ag_")
_HIDDEN_TYPES = (types.ModuleType, types.FrameType, types.CodeType, types.TracebackType)
# Tests that pass one of these would lend the program their own names and files.
_NOT_LENT = (
    eval, exec, compile, open, getattr, setattr, delattr, vars, globals, locals, __import__,
    breakpoint, operator.attrgetter, operator.methodcaller,
)  # fmt: skip

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_",
           "xor", "lshift", "rshift")  # fmt: skip
_UNARY = ("neg", "pos", "abs", "invert")
_ITEMS = ("getitem", "setitem", "delitem")
# What the tests may have done to an object, by name.
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "iter": iter, "next": next, "len": len, "bool": bool, "str": str, "repr": repr, "hash": hash,
    "int": int, "float": float, "isinstance": isinstance,
}  # fmt: skip
for _name in (*_COMPARISONS, *_BINARY, *_UNARY, *_ITEMS):
    _OPERATIONS[_name] = getattr(operator, _name)


class ProgramError(Exception):
    """The program raised something that is no built-in exception and derives from none."""


class Gone(BaseException):
    """The other side is not there any more, or does not speak the protocol."""


class Handle:
    """An object that lives on the other side."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Handle:
            return False
        return self is other or self._peer.ask_for(bool, "eq", self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return self._peer.ask_for(int, "hash", self)

    def __bool__(self) -> bool:
        return self._peer.ask_for(bool, "bool", self)

    def __len__(self) -> int:
        return self._peer.ask_for(int, "len", self)

    def __str__(self) -> str:
        return self._peer.ask_for(str, "str", self)

    def __repr__(self) -> str:
        return self._peer.ask_for(str, "repr", self)

    def __int__(self) -> int:
        return self._peer.ask_for(int, "int", self)

    def __float__(self) -> float:
        return self._peer.ask_for(float, "float", self)

    def __iter__(self) -> Any:
        return self._peer.ask("iter", self)

    def __next__(self) -> Any:
        return self._peer.ask("next", self)

    def __enter__(self) -> Any:
        return self._peer.ask("enter", self)

    def __exit__(self, *unused: object) -> None:
        self._peer.ask("exit", self)

    def __instancecheck__(self, instance: object) -> bool:
        return type(instance) is Handle and self._peer.ask_for(bool, "isinstance", instance, self)


def _add_operators() -> None:
    def forward(name: str, *, is_reflected: bool = False, needs_handle: bool = False) -> Any:
        def method(self: Handle, *others: Any) -> Any:
            if needs_handle and type(others[0]) is not Handle:
                raise TypeError(f"{name!r} between an object of the program and plain data")
            operands = (others[0], self) if is_reflected else (self, *others)
            return self._peer.ask(name, *operands)

        return method

    for name in ("lt", "le", "gt", "ge"):
        setattr(Handle, f"__{name}__", forward(name, needs_handle=True))
    for name in _BINARY:
        plain = name.rstrip("_")
        setattr(Handle, f"__{plain}__", forward(name, needs_handle=True))
        setattr(Handle, f"__r{plain}__", forward(name, is_reflected=True, needs_handle=True))
    for name in (*_UNARY, *_ITEMS):
        setattr(Handle, f"__{name}__", forward(name))


_add_operators()


class Peer:
    """One end of the channel.

    `on_wait` is told when a reply is waited for (True) and when it is here (False); `on_gone` when
    it will never be. `is_tests`: this is the tests' end, which guards what it handed out.
    """

    def __init__(
        self,
        fd: int,
        max_bytes: int,
        on_wait: Callable[[bool], None] = lambda is_waiting: None,
        on_gone: Callable[[], None] = lambda: None,
        *,
        is_tests: bool = False,
    ) -> None:
        self._fd = fd
        self._is_tests = is_tests
        self._max_bytes = max_bytes
        self._on_wait = on_wait
        self._on_gone = on_gone
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._handles: dict[int, Handle] = {}
        self._lock = _thread.RLock()
        self.last_error: BaseException | None = None

    # Frames.

    def _encode(self, value: Any) -> bytes:
        return codec.encode(value, max_bytes=self._max_bytes, handle_of=self._number_of)

    def _number_of(self, value: Any) -> int:
        """Odd: an object of the receiver. Even: one of ours, kept from now on."""
        if type(value) is Handle:
            return 2 * value._number + 1
        if type(value) is _Instance:
            value = value.value
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return 2 * number

    def _from_number(self, number: int) -> Any:
        if number % 2:
            return self._objects[number // 2]
        if number not in self._handles:
            self._handles[number] = Handle(self, number // 2)
        return self._handles[number]

    def send(self, *message: Any) -> None:
        """Sends one frame. Raises codec.CodecError if it is too large, Gone if nobody reads."""
        body = self._encode(message)
        data = _LENGTH.pack(len(body)) + body
        try:
            while data:
                data = data[_write(self._fd, data) :]
        except OSError:
            raise Gone from None

    def receive(self) -> tuple[Any, ...]:
        """Waits for the next frame. Raises Gone at the end or on bytes that are no frame."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > self._max_bytes:
            raise Gone
        try:
            message = codec.decode(
                self._exactly(length), max_bytes=self._max_bytes, from_handle=self._from_number
            )
        except codec.CodecError:
            raise Gone from None
        if type(message) is not tuple or not message or type(message[0]) is not str:
            raise Gone
        return message

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = _read(self._fd, min(count - len(data), 1 << 16))
            except OSError:
                part = b""
            if not part:
                raise Gone
            data += part
        return bytes(data)

    # Asking.

    def ask(self, *request: Any) -> Any:
        """Sends a request and returns its value or raises its exception."""
        try:
            return self._ask(request)
        except Gone:
            self._on_gone()
            raise

    def _ask(self, request: tuple[Any, ...]) -> Any:
        with self._lock:  # tests may have threads
            self.send(*request)
            try:
                self._on_wait(True)
                # Until its answer is here the other side may ask for what it was given.
                while (reply := self.receive())[0] not in _REPLIES:
                    self._answer(lambda reply=reply: self._perform({}, *reply))  # type: ignore[misc]
                self._on_wait(False)
            except BaseException:
                raise Gone from None  # whose answer comes next is no longer certain
        if reply[0] == "value" and len(reply) == 3:
            if reply[2] is not None and request[0] == "call":
                _copy_back(request[2:], reply[2])
            return reply[1]
        if reply[0] == "module":
            # The tests get their own, and only if the program calls it by the name they know.
            if reply[1:] == request[1:] and reply[1] in sys.stdlib_module_names:
                return __import__(reply[1])
            raise NameError(
                f"tests cannot reach the module that the program has as {request[-1]!r}"
            )
        if reply[0] != "error" or len(reply) != 4 or type(reply[3]) is not tuple:
            raise Gone
        self.last_error = _exception(*reply[1:])
        raise self.last_error

    def wait_for_load(self) -> None:
        """The program's first frame says that it has loaded."""
        self._on_wait(True)
        try:
            self.receive()
        except Gone:
            self._on_gone()
            raise
        self._on_wait(False)

    def ask_for(self, kind: type, *request: Any) -> Any:
        value = self.ask(*request)
        if type(value) is not kind:
            raise TypeError(f"the program's {request[0]} gave no {kind.__name__}")
        return value

    def call(self, target: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.ask("call", target, args, kwargs)

    # Answering.

    def _answer(self, action: Callable[[], tuple[Any, Any]]) -> None:
        """Runs an action and sends its value, what it changed, or its exception."""
        try:
            value, changed = action()
            if type(value) is types.ModuleType:
                self.send("module", value.__name__)
            else:
                self.send("value", value, changed)
        except Gone:
            raise
        except codec.BudgetError as error:
            self.send("error", "", "ValueTooLarge", (str(error),))
        except BaseException as error:
            self._send_error(error)

    def _send_error(self, error: BaseException) -> None:
        base = next((k for k in _mro_of(type(error)) if vars(builtins).get(k.__name__) is k), None)
        args = error.args if type(error.args) is tuple else ()
        parts = (base.__name__ if base else "", _type_name(type(error))[:200])
        try:
            codec.encode(args, max_bytes=4096)
            self.send("error", *parts, args)
        except codec.CodecError:
            self.send("error", *parts, (_text_of(error),))

    def serve(self, namespace: dict[str, Any], before: Callable[[], object]) -> NoReturn:
        """The program's side: answers requests until the tests are gone (raises Gone)."""
        pid = _getpid()
        while True:
            request = self.receive()
            before()
            self._answer(lambda request=request: self._perform(namespace, *request))  # type: ignore[misc]
            if _getpid() != pid:
                _exit(0)  # a program that forked: one of the two answers

    def _perform(self, namespace: dict[str, Any], name: str, *operands: Any) -> tuple[Any, Any]:
        if name == "name":
            if operands[0].startswith("__") or operands[0] not in namespace:
                raise NameError(f"name {operands[0]!r} is not defined")
            return namespace[operands[0]], None
        if name == "call":
            return self._perform_call(*operands)
        if name in ("getattr", "setattr"):
            is_hidden = operands[1].startswith(_HIDDEN_PREFIXES)
            if type(operands[1]) is not str or (is_hidden and operands[1] != "__name__"):
                raise AttributeError(f"tests cannot reach the attribute {operands[1]!r}")
            if isinstance(operands[0], _HIDDEN_TYPES):
                raise AttributeError(f"what a {type(operands[0]).__name__} holds cannot be reached")
            if name == "getattr":
                return getattr(*operands), None
            if self._is_tests and _holds_code(*operands[:2]):
                raise AttributeError(f"the program cannot replace {operands[1]!r} of the tests")
            return setattr(*operands), None  # type: ignore[func-returns-value]
        if name == "enter":
            return type(operands[0]).__enter__(operands[0]), None
        if name == "exit":
            return type(operands[0]).__exit__(operands[0], None, None, None), None
        return _OPERATIONS[name](*operands), None

    def _perform_call(self, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if self._is_tests and any(
            x is y for x in (target, *args, *kwargs.values()) for y in _NOT_LENT
        ):
            raise TypeError(f"the program cannot call the tests' {target!r}")
        has_state = any(type(x) not in _UNCHANGING for x in (*args, *kwargs.values()))
        before = self._encode((args, kwargs)) if has_state else b""
        value = target(*args, **kwargs)
        if type(value) is target:
            value = _Instance(value)
        changed = (args, kwargs) if has_state and self._encode((args, kwargs)) != before else None
        return value, changed


def _holds_code(target: Any, name: str) -> bool:
    """Whether setting the attribute would change more than an object's data."""
    is_definition = isinstance(target, (type, types.FunctionType))
    return is_definition or callable(getattr(type(target), name, None))


_UNCHANGING = (type(None), bool, int, float, str, bytes, Handle)


class _Instance:
    """Crosses as a handle though a base class has a plain form: the tests want its methods."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _text_of(error: BaseException) -> str:
    try:
        return str.__str__(str(error))[:1000]
    except BaseException:
        return "<the exception's message could not be rendered>"


def _exception(base: Any, name: Any, args: tuple[Any, ...]) -> BaseException:
    kind = vars(builtins).get(base) if type(base) is str else None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            return kind(*args)
        except TypeError:
            return kind.__new__(kind)
    return ProgramError(f"{name}: {args[0] if args else ''}"[:1000])


def _copy_back(old: Any, new: Any) -> None:
    """Makes the containers in `old` hold what `new` holds, in place."""
    kind = type(old)
    if kind is not type(new):
        return
    if kind is tuple:
        for left, right in zip(old, new):
            _copy_back(left, right)
    elif kind is list:
        old[:] = [_merged(old[i], item) if i < len(old) else item for i, item in enumerate(new)]
    elif kind is dict:
        items = {k: _merged(old[k], item) if k in old else item for k, item in new.items()}
        old.clear()
        old.update(items)
    elif kind is set:
        old.clear()
        old.update(new)
    elif arrays.numpy_type_of(kind) == "array" and old.shape == new.shape:
        old[...] = new


def _merged(old: Any, new: Any) -> Any:
    if type(old) is type(new) and (
        type(old) in (list, dict, set) or arrays.numpy_type_of(type(old)) == "array"
    ):
        _copy_back(old, new)
        return old
    return new
