"""Judges a file of programs with known right verdicts: the sandbox's own examination.

File: {"entry_point", "calls": [text], "expected": [value], "cases": [{"id", "program", "want"}]};
a case may have its own `entry_point`, `calls` and `expected`. `want` is a verdict or several:
"FAIL", "FAIL|ERROR", "FAIL or ERROR".
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from sandbox_service import codec, limits
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc
from sandbox_service.runner import Verdict

_DEADLINE_S = 240.0


class CasesError(ValueError):
    """The file of cases cannot be used."""


@dataclass(frozen=True)
class Case:
    """One program, the calls to make and the verdicts that are right."""

    name: str
    request: pb.RunRequest
    wanted: tuple[str, ...]
    behaviour: str


def load_cases(path: str) -> list[Case]:
    """Reads a file of cases. Raises CasesError naming what is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if isinstance(content, list):
            content = {"cases": content}
        return [_load_case(content, case, index) for index, case in enumerate(content["cases"])]
    except CasesError:
        raise
    except OSError as error:
        raise CasesError(f"cannot read the cases: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CasesError(f"{path}: not a file of cases: {type(error).__name__}: {error}") from None


def _load_case(content: dict[str, Any], case: dict[str, Any], index: int) -> Case:
    name = str(case.get("id", index))
    calls = case.get("calls", content.get("calls", []))
    expected = case.get("expected", content.get("expected", []))
    if len(calls) != len(expected) or not calls:
        raise CasesError(f"case {name}: {len(calls)} calls but {len(expected)} expected values")
    program = next((case[key] for key in ("program", "code", "source") if key in case), None)
    if program is None:
        raise CasesError(f"case {name} has no program")
    wanted = tuple(re.findall(r"[A-Z_]+", case["want"]))
    unknown = [word for word in wanted if word not in Verdict.__members__]
    if unknown or not wanted:
        raise CasesError(f"case {name}: {case['want']!r} is not a verdict")
    request = pb.RunRequest(
        program=pb.Source(inline=program.encode("utf-8", "surrogatepass")), no_restart=True
    )
    for text, value in zip(calls, expected):
        request.calls.add(text=text.encode("utf-8", "surrogatepass"), expected=codec.encode(value))
    return Case(name, request, wanted, str(case.get("behaviour", "")))


def judge_all(
    address: str, cases: list[Case], *, num_parallel: int, run_limits: pb.Limits | None = None
) -> int:
    """Prints one line per case and the totals; 1 if any verdict is wrong, else 0."""
    totals: Counter[str] = Counter()
    for case in cases:
        case.request.limits.CopyFrom(run_limits or pb.Limits())
    for case, verdict, message in _verdicts(address, cases, num_parallel):
        is_right = verdict in case.wanted
        totals["right" if is_right else "wrong"] += 1
        totals["paid"] += verdict == "PASS" and not is_right
        mark = "ok   " if is_right else "WRONG"
        line = f"{mark} {case.name:>4} {verdict:<12} want {'|'.join(case.wanted):<14}"
        print(f"{line} {case.behaviour}{'' if is_right else f'  [{message}]'}".rstrip(), flush=True)
    print(
        f"{len(cases)} cases: {totals['right']} right, {totals['wrong']} wrong, "
        f"{totals['paid']} wrong programs paid"
    )
    return 1 if totals["wrong"] else 0


def _verdicts(
    address: str, cases: list[Case], num_parallel: int
) -> Iterator[tuple[Case, str, str]]:
    options = (
        ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", limits.MAX_MESSAGE_BYTES),
    )
    with grpc.insecure_channel(address, options=options) as channel:
        stub = pb_grpc.SandboxStub(channel)

        def judge(case: Case) -> tuple[Case, str, str]:
            try:
                reply = stub.Run(case.request, timeout=_DEADLINE_S)
            except grpc.RpcError as error:
                return case, error.code().name, str(error.details())
            return case, Verdict(reply.verdict).name, reply.message

        with ThreadPoolExecutor(num_parallel) as threads:
            yield from threads.map(judge, cases)
