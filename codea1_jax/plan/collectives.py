"""Collectives of a compiled program, read from its HLO text.

A collective inside a loop runs as often as the loop: the trip count that XLA prints, or the
constant that the loop's condition compares with. Of loops with neither the caller says a bound.
"""

import collections
import dataclasses
import math
import re

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][\w-]*)\(")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:body|calls|to_apply|\w+_computations?)=(\{[^}]*\}|%?[\w.-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONSTANT = re.compile(r" = s32\[\]\S* constant\((\d+)\)")
_GROUPS = re.compile(
    r"replica_groups=(?:\[\d+,(?P<size>\d+)\]|\{\{(?P<first>[\d,]*)\}"
    r"|mesh\[(?P<mesh>[^\]]*)\] \{(?P<axes>[^}]*)\})"
)
_AXIS_SIZE = re.compile(r"'([^']+)'=(\d+)")
# A part of an axis is written 'axis':(size of what precedes it)its own size.
_AXIS_USED = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
      shape: of its result on one device, e.g. "bf16[1536,8960]"; the largest of several.
      num_bytes: of all its results.
      group: devices that take part.
      count: times it runs in one call of the program.
    """

    kind: str
    shape: str
    num_bytes: int
    group: int
    count: int

    @property
    def sent_bytes(self) -> float:
        """Bytes each device sends in all its runs, with ring algorithms."""
        others = self.group - 1
        share = {
            "all-gather": others / self.group,
            "all-reduce": 2 * others / self.group,
            "reduce-scatter": others,
            "all-to-all": others / self.group,
            "collective-permute": 1,
        }
        return share[self.kind] * self.num_bytes * self.count


@dataclasses.dataclass
class _Computation:
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)
    loops: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)
    constant: int = 0  # the largest, which a condition compares with


def collectives_of(hlo: str, num_devices: int, unknown_trips: int) -> list[Collective]:
    """The collectives of a compiled module, those that send most first.

    Args:
      unknown_trips: how often a loop of unknown length runs, at most.
    """
    computations: dict[str, _Computation] = collections.defaultdict(_Computation)
    entry = name = ""
    for line in hlo.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            name = header[2]
            entry = name if header[1] else entry
        elif line.startswith(" "):
            _read(line, computations[name], num_devices)

    total: collections.Counter[Collective] = collections.Counter()

    def walk(name: str, times: int) -> None:
        computation = computations[name]
        for one in computation.collectives:
            total[one] += times
        for callee in computation.calls:
            walk(callee, times)
        for body, condition, trips in computation.loops:
            walk(body, times * (trips or computations[condition].constant or unknown_trips))

    walk(entry, 1)
    merged = [dataclasses.replace(one, count=count) for one, count in total.items()]
    return sorted(merged, key=lambda one: (-one.sent_bytes, one.kind, one.shape))


def _read(line: str, computation: _Computation, num_devices: int) -> None:
    instruction = _INSTRUCTION.match(line)
    if instruction is None:
        return
    result, operation = instruction[1], instruction[2]
    kind = operation.removesuffix("-start")
    if kind in _KINDS:
        shapes = [(_size(*shape), f"{shape[0]}[{shape[1]}]") for shape in _SHAPE.findall(result)]
        num_bytes, shape = max(shapes)
        if kind == "all-reduce" or not operation.endswith("-start"):
            # Several arrays at once. An asynchronous start lists operands beside results instead.
            num_bytes = sum(size for size, _ in shapes)
        group = _group_size(line, num_devices)
        computation.collectives.append(Collective(kind, shape, num_bytes, group, 1))
    constant = _CONSTANT.search(line)
    if constant:
        computation.constant = max(computation.constant, int(constant[1]))
    called = [name.strip(" %") for c in _CALLED.findall(line) for name in c.strip("{}").split(",")]
    condition = _CONDITION.search(line)
    if operation == "while" and condition:
        trips = _TRIPS.search(line)
        computation.loops += [
            (body, condition[1], int(trips[1]) if trips else 0) for body in called
        ]
    else:
        computation.calls += called


def _group_size(line: str, num_devices: int) -> int:
    """Devices of a group, from any of the three forms that XLA prints."""
    found = _GROUPS.search(line)
    if found is None:
        return num_devices
    if found["size"]:
        return int(found["size"])
    if found["mesh"] is None:
        return found["first"].count(",") + 1
    sizes = dict(_AXIS_SIZE.findall(found["mesh"]))
    return math.prod(int(part or sizes[axis]) for axis, part in _AXIS_USED.findall(found["axes"]))


def _size(dtype: str, dimensions: str) -> int:
    bits = re.search(r"\d+", dtype)  # bf16, s32, f8e4m3; pred has none and takes a byte
    width = max(int(bits[0]) // 8, 1) if bits else 1
    return width * math.prod(int(d) for d in dimensions.split(",") if d)
