"""Judging in the background: questions go to the sandbox while others are still sampled.

    with Judging(len(problems), give_up=client.close) as judging:
        judging.start(3, judge)         # in any order, as questions are finished
        judging.start(0, other_judge)
        ...
        verdicts = judging.verdicts()   # waits for the last ones; in the order of the questions

When a verdict arrives decides nothing but how long the end is waited for. Every process judges its
share of the questions in its own sandbox.
"""

import threading
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from time import monotonic
from typing import Self

from codea1_jax import distributed
from codea1_jax.coevo.verdicts import ProblemVerdicts


class Judging:
    """The verdicts of some questions, each judged in a thread of its own.

    No thread outlives the block. One that is left by an exception does not wait for the sandbox.

    Attributes:
      num_own: questions that this process judges.
      busy_s: seconds in which at least one of them was being judged.
    """

    def __init__(self, num_questions: int, give_up: Callable[[], None]):
        """`give_up` makes judges that wait for the sandbox return (`SandboxClient.close`)."""
        self._own = distributed.share(list(range(num_questions)))
        self._give_up = give_up
        # Fewer threads would let questions queue behind a sandbox that does not answer, and its
        # deadlines would add up.
        self._pool = ThreadPoolExecutor(max(self.num_own, 1), thread_name_prefix="judge")
        self._futures: dict[int, Future[ProblemVerdicts]] = {}
        self._lock = threading.Lock()
        self._num_open = 0
        self._busy_since = 0.0
        self._error: BaseException | None = None
        self.busy_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if kind is not None:
            self._give_up()
        self._pool.shutdown(cancel_futures=True)

    @property
    def num_own(self) -> int:
        return len(self._own)

    def start(self, question: int, judge: Callable[[], ProblemVerdicts]) -> None:
        """Has `judge` called in the background if the question is of this process's share."""
        if question not in self._own:
            return
        with self._lock:
            if not self._num_open:
                self._busy_since = monotonic()
            self._num_open += 1
        self._futures[question] = self._pool.submit(self._run, judge)

    def check(self) -> None:
        """Raises what a judge has raised so far."""
        if self._error is not None:
            raise self._error

    def verdicts(self, on_verdict: Callable[[], None] = lambda: None) -> list[ProblemVerdicts]:
        """Waits for the verdicts of all questions, all of which must have been started.

        Args:
          on_verdict: called for each question of this process as its verdicts are there.

        Raises:
          Exception: what a judge raises, without waiting for the others.
        """
        for future in as_completed(self._futures.values()):
            future.result()
            on_verdict()
        return distributed.collect([self._futures[question].result() for question in self._own])

    def _run(self, judge: Callable[[], ProblemVerdicts]) -> ProblemVerdicts:
        try:
            return judge()
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._lock:
                self._num_open -= 1
                if not self._num_open:
                    self.busy_s += monotonic() - self._busy_since
