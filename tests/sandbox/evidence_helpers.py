"""Short ways to ask the service, and a picture of its answer to compare with."""

from typing import Any

from sandbox_service.proto import sandbox_pb2 as pb


def source(text: str | bytes) -> pb.Source:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return pb.Source(inline=data)


def run_tests(stub: Any, mode: int, program: str, tests: str, **fields: Any) -> pb.RunReply:
    request = pb.RunRequest(program=source(program), tests=source(tests), mode=mode, **fields)
    return stub.Run(request, timeout=60)


def verdict(reply: pb.RunReply) -> str:
    return pb.Verdict.Name(reply.verdict).removeprefix("VERDICT_")


def picture(reply: pb.RunReply) -> list[str]:
    """Per outcome "pass", or its error type, or its status where it has none."""
    words = []
    for outcome in reply.outcomes:
        name = pb.CallStatus.Name(outcome.status).removeprefix("CALL_")
        words.append(outcome.error_type or ("pass" if outcome.passed else name))
    return words
