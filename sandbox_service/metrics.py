"""Prometheus metrics, on a port of their own, and log lines in JSON. Never any program text."""

import json
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sandbox_service.proto import sandbox_pb2 as pb

if TYPE_CHECKING:
    from sandbox_service.servicer import SandboxServicer

_PREFIX = "codea1_sandbox_"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# Names in the pool's counts: failed attempts, and why slots were made anew.
_INTERNAL, _RECYCLED = "internal", "slot_"


class Metrics:
    """Counts runs as they are answered; the rest is read when somebody asks."""

    def __init__(self, servicer: "SandboxServicer") -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._runs = prometheus_client.Counter(
            _PREFIX + "runs_total",
            "Answered runs; verdict is the status where no value was expected",
            ("verdict", "evidence", "cached"),
            registry=self._registry,
        )
        self._num_oom = prometheus_client.Counter(
            _PREFIX + "oom_total", "Runs that used up their memory", registry=self._registry
        )
        self._seconds = {
            what: prometheus_client.Histogram(
                f"{_PREFIX}{what}_seconds", text, registry=self._registry, buckets=_SECONDS
            )
            for what, text in (
                ("run", "Wall time of runs"),
                ("queue", "Time that runs waited for a slot"),
                ("cpu", "CPU time of runs"),
            )
        }
        self._labelled: dict[tuple[int, int, int, bool], prometheus_client.Counter] = {}
        self._registry.register(_State(servicer))

    def count(self, reply: pb.RunReply) -> None:
        """One run has been answered."""
        key = (reply.verdict, reply.status, reply.evidence, reply.cache_hit)
        counter = self._labelled.get(key)
        if counter is None:
            counter = self._labelled[key] = self._runs.labels(
                verdict=verdict_name(reply),
                evidence=pb.Evidence.Name(reply.evidence).lower(),
                cached=str(reply.cache_hit).lower(),
            )
        counter.inc()
        if not reply.cache_hit:
            self._seconds["run"].observe(reply.wall_us / 1e6)
            self._seconds["queue"].observe(reply.queue_us / 1e6)
            self._seconds["cpu"].observe(reply.cpu_us / 1e6)
            if reply.status == pb.MEMORY:
                self._num_oom.inc()

    def listen(self, host: str, port: int) -> int:
        """Serves /metrics from a thread and returns the port. Raises OSError."""
        server, _ = prometheus_client.start_http_server(port, host, registry=self._registry)
        return int(server.server_port)


class _State:
    """What can be read off the server at any time."""

    def __init__(self, servicer: "SandboxServicer") -> None:
        self._servicer = servicer

    def collect(self) -> Iterable[Metric]:
        servicer = self._servicer
        pool, scheduler = servicer.pool, servicer.scheduler
        cache, blobs = servicer.cache, servicer.blobs
        gauges = {
            "slots": ("Runs that are possible at a time", scheduler.num_slots),
            "slots_busy": ("Slots that run a program", scheduler.num_running),
            "queue_length": ("Runs that wait for a slot", scheduler.num_waiting),
            "cache_bytes": ("Size of the kept replies", cache.num_bytes),
            "blob_bytes": ("Size of the blob store", blobs.num_bytes),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        tier = GaugeMetricFamily(_PREFIX + "tier", "1 for the tier of isolation", labels=["tier"])
        tier.add_metric([pool.tier], 1)
        yield tier
        counters = {
            "cache_hits": ("Runs answered from the cache", cache.num_hits),
            "cache_joined": ("Runs answered by an equal run in flight", cache.num_joined),
            "internal_errors": ("Attempts that the sandbox failed at", pool.counts[_INTERNAL]),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
        recycles = CounterMetricFamily(
            _PREFIX + "slot_recycles", "Slots that were made anew", labels=["reason"]
        )
        for reason, number in sorted(pool.counts.items()):
            if reason.startswith(_RECYCLED):
                recycles.add_metric([reason.removeprefix(_RECYCLED)], number)
        yield recycles


def verdict_name(reply: pb.RunReply) -> str:
    """The verdict in lower case, or the status where no value was expected."""
    if reply.verdict:
        return pb.Verdict.Name(reply.verdict).removeprefix("VERDICT_").lower()
    return pb.Status.Name(reply.status).lower()


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra={"fields": {...}}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
