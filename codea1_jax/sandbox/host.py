"""One host of the sandbox service as a client sees it: its stream, its window, its health."""

import collections
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import grpc

from codea1_jax.sandbox import wire
from codea1_jax.sandbox.wire import Job
from sandbox_service.auth import AuthError
from sandbox_service.channel import Security, open_channel
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 5.0
_SICK_PAUSE_S, _MAX_SICK_PAUSE_S = 1.0, 30.0
_CONNECT_TIMEOUT_S = 5.0
# A host with work that says nothing for so long is asked whether it lives; it has this long to say.
_SILENCE_S, _PROBE_TIMEOUT_S = 2.0, 4.0
# Ejected when more than half of the last replies were failures of the sandbox itself.
_NUM_JUDGED = 16
_MESSAGE_BYTES = 4 << 20  # enough: with one more run, however large, it is below gRPC's limit


class Dispatcher(Protocol):
    """What a host needs of its client (`client.SandboxClient`)."""

    @property
    def has_work(self) -> bool: ...
    @property
    def num_hosts(self) -> int: ...
    def dispatch(self) -> None: ...
    def take_back(self, jobs: list[Job]) -> None: ...
    def receive(self, host: "Host", job: Job, reply: pb.RunReply) -> None: ...


class Host:
    """Keeps a stream open while there is work. Shares the client's lock."""

    def __init__(
        self,
        address: str,
        client: Dispatcher,
        lock: threading.Condition,
        window: int | None,
        security: Security,
    ) -> None:
        self.address = address
        self.waiting: list[Job] = []  # a heap of those that are at home here
        self.last_sign_s = time.monotonic()
        self.trouble = "not connected yet"  # why there is no stream, or the last one ended
        self._client = client
        self._lock = lock
        self._fixed_window = window
        self._security = security
        self._metadata = security.metadata()
        self._certificates = security.certificates()  # before: what changes now is seen later
        self._channel = open_channel(address, security, retries=False)
        self._stub = pb_grpc.SandboxStub(self._channel)
        self._window = 0  # of the open stream; 0: there is none
        self._sent: dict[int, tuple[Job, float]] = {}  # and when
        self._ids = itertools.count(1)
        self._outbox: queue.SimpleQueue[pb.RunRequest | None] = queue.SimpleQueue()
        self._call: Any = None
        self._probe: Any = None
        self._failures: collections.deque[bool] = collections.deque(maxlen=_NUM_JUDGED)
        self._num_ejections = 0  # in a row, for failures
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._keep_streaming, name=f"sandbox-{address}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._outbox.put(None)
        self._channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def ask(self, timeout_s: float) -> Any:
        """A future of the host's `Info`."""
        return self._stub.GetInfo.future(
            pb.InfoRequest(), timeout=timeout_s, wait_for_ready=True, metadata=self._metadata
        )

    # With the lock held.

    @property
    def has_room(self) -> bool:
        return len(self._sent) < self._window

    @property
    def load(self) -> float:
        """Outstanding work as a share of what the host takes at a time."""
        return len(self._sent) / self._window

    def send(self, job: Job) -> None:
        """Hands a run to the stream."""
        request = job.request
        if job.sent_s:  # gRPC may still hold the first message
            request = pb.RunRequest()
            request.CopyFrom(job.request)
        request.id = next(self._ids)
        now = time.monotonic()
        job.sent_s = job.sent_s or now
        job.num_copies += 1
        self._sent[request.id] = job, now
        self._outbox.put(request)

    def unanswered(self) -> list[tuple[int, Job, float]]:
        """Number, run and time of sending of all that is with this host."""
        return [(number, job, sent_s) for number, (job, sent_s) in self._sent.items()]

    def forget(self, number: int) -> None:
        """No answer is needed any more."""
        self._sent.pop(number)[0].num_copies -= 1

    def look_after(self, now_s: float) -> None:
        """Asks a silent host with work whether it lives; `_probed` ejects it if it says nothing."""
        if not self._sent or self._probe is not None:
            return
        oldest_s = min(sent_s for _, sent_s in self._sent.values())
        if now_s - max(self.last_sign_s, oldest_s) > _SILENCE_S:
            self._probe = self._stub.GetInfo.future(
                pb.InfoRequest(), timeout=_PROBE_TIMEOUT_S, metadata=self._metadata
            )
            self._probe.add_done_callback(self._probed)

    # Threads: one keeps the stream and reads it; gRPC's own pulls requests from the outbox.

    def _probed(self, call: Any) -> None:
        is_alive = call.code() is grpc.StatusCode.OK
        with self._lock:
            self._probe = None
            if is_alive:
                self.last_sign_s = time.monotonic()
            elif self._call is not None and not self._is_closed:
                self._call.cancel()

    def _keep_streaming(self) -> None:
        num_failures = 0
        while True:
            with self._lock:
                while not (self._client.has_work or self._is_closed):
                    self._lock.wait()
            if self._is_closed:
                return
            first_sign_s = self.last_sign_s
            try:
                self._stream()
                trouble = "the stream ended"
            except (grpc.RpcError, ValueError) as error:
                trouble = wire.reason(error)
            if self._is_closed:
                return
            log.warning("no stream to the sandbox at %s (%s); trying again", self.address, trouble)
            num_failures = 0 if self.last_sign_s > first_sign_s else num_failures + 1
            with self._lock:
                self.trouble = trouble
                self._window = 0
                jobs = [job for job, _ in self._sent.values()]
                for number in list(self._sent):
                    self.forget(number)
                self._client.take_back(jobs)
            pause_s = min(_FIRST_PAUSE_S * 2**num_failures, _MAX_PAUSE_S)
            if self._num_ejections:
                pause_s = min(_SICK_PAUSE_S * 2 ** (self._num_ejections - 1), _MAX_SICK_PAUSE_S)
            time.sleep(pause_s * random.uniform(0.5, 1.5))

    def _stream(self) -> None:
        """One stream from its beginning to its end. Raises RpcError, and ValueError if closed."""
        self._metadata = self._security.metadata()
        self._renew_channel()
        info = self._stub.GetInfo(
            pb.InfoRequest(), timeout=_CONNECT_TIMEOUT_S, metadata=self._metadata
        )
        outbox: queue.SimpleQueue[pb.RunRequest | None] = queue.SimpleQueue()
        call = self._stub.Execute(_messages(outbox), metadata=self._metadata)
        with self._lock:
            self._outbox, self._call = outbox, call
            self._failures.clear()
            self.last_sign_s = time.monotonic()
            self.trouble = "connected"
            self._window = self._fixed_window or max(1, info.window)
            self._client.dispatch()
        try:
            for message in call:
                self._receive(message.replies)
        finally:
            outbox.put(None)
            with self._lock:
                self._call = None
                self._window = 0

    def _renew_channel(self) -> None:
        """A channel keeps the certificates that it was opened with; new ones need a new channel."""
        try:
            certificates = self._security.certificates()
            if certificates == self._certificates:
                return
            channel = open_channel(self.address, self._security, retries=False)
        except AuthError as error:
            log.error("the old certificates stay in use for %s: %s", self.address, error)
            return
        with self._lock:
            old, self._channel, self._certificates = self._channel, channel, certificates
            self._stub = pb_grpc.SandboxStub(channel)
            is_closed = self._is_closed
        old.close()
        if is_closed:  # `close` saw the old one
            channel.close()
        log.warning("read the certificates for %s again", self.address)

    def _receive(self, replies: Iterable[pb.RunReply]) -> None:
        answered: list[tuple[Job, pb.RunReply]] = []
        with self._lock:
            self.last_sign_s = time.monotonic()
            for reply in replies:
                job, _ = self._sent.pop(reply.id, (None, 0.0))
                if job is not None:
                    job.num_copies -= 1
                    self._judge(reply.status == pb.INTERNAL)
                    answered.append((job, reply))
            self._client.dispatch()
        for job, reply in answered:
            self._client.receive(self, job, reply)

    def _judge(self, is_failure: bool) -> None:
        """Ejects a host that fails at most of its runs, for longer every time."""
        self._failures.append(is_failure)
        if self._client.num_hosts == 1 or len(self._failures) < _NUM_JUDGED:
            return
        if sum(self._failures) > _NUM_JUDGED // 2:
            self._num_ejections += 1
            self._failures.clear()
            log.warning("most runs fail inside the sandbox at %s; leaving it alone", self.address)
            self._call.cancel()
        elif not any(self._failures):
            self._num_ejections = 0


def _messages(outbox: "queue.SimpleQueue[pb.RunRequest | None]") -> Iterator[pb.RunRequests]:
    """What waits in the outbox in as few messages as it fits into, until there comes None."""
    for first in iter(outbox.get, None):
        message = pb.RunRequests(runs=[first])
        while not outbox.empty() and message.ByteSize() < _MESSAGE_BYTES:
            request = outbox.get()
            if request is None:
                yield message
                return
            message.runs.append(request)
        yield message
