"""How long runs are expected to take, from earlier runs of the same tests.

Long runs should start first: one that starts last is waited for alone (Graham 1969). But none may
wait for ever, so a run is ordered as if it had come earlier by the time that it is expected to
take, at most `MAX_AHEAD_S`: nobody is overtaken by what comes later than that.
"""

from collections import OrderedDict

from sandbox_service.proto import sandbox_pb2 as pb

MAX_AHEAD_S = 10.0
_MAX_ENTRIES = 20_000
_WEIGHT = 0.3  # of the newest run
_NUM_CALLS = 16  # that tell suites apart


class CostTable:
    """Mean seconds of earlier runs, by the tests that they were run with."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[int, float] = OrderedDict()

    def expected_s(self, request: pb.RunRequest) -> float:
        """What a run will take. Of unknown tests: the CPU time that the request asks for, or 0."""
        known = self._seconds.get(_key(request))
        return request.limits.cpu_s if known is None else known

    def note(self, request: pb.RunRequest, seconds: float) -> None:
        """A run of these tests took `seconds` of wall clock, without waiting for its turn."""
        key = _key(request)
        self._seconds[key] = seconds + (1 - _WEIGHT) * (self._seconds.get(key, seconds) - seconds)
        self._seconds.move_to_end(key)
        if len(self._seconds) > _MAX_ENTRIES:
            self._seconds.popitem(last=False)


def _key(request: pb.RunRequest) -> int:
    """Of the tests alone. Equal numbers of unlike tests do no harm: only the order is at stake."""
    parts: list[object] = [request.task_id, request.entry_point, request.tests.inline]
    parts += [call.text or call.invocation.args for call in request.calls[:_NUM_CALLS]]
    parts += [case.stdin for case in request.stdio[:_NUM_CALLS]]
    return hash(tuple(parts))
