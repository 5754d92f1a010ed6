"""Hold-out evaluation of the coder between training steps."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from codea1_jax import distributed
from codea1_jax.coevo.prompts import Message
from codea1_jax.config import EvalConfig
from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.data.record import Problem
from codea1_jax.data.sources import SUITES, load_problems, load_suite
from codea1_jax.eval import runner
from codea1_jax.eval.golden import evaluate_embedded
from codea1_jax.eval.samples import EvalSample, generate_samples
from codea1_jax.gin_io import ConfigurationError, resolve_path
from codea1_jax.obs.progress import Progress
from codea1_jax.roles import Role
from codea1_jax.sandbox.client import SandboxClient


@dataclasses.dataclass
class Holdout:
    """Problems that are never trained on, and how the coder is judged on them.

    Attributes:
      problems: what the coder is asked; hidden tests or structured inputs come with them.
      num_dropped: problems left out because their prompt exceeds the coder's limit.
    """

    config: EvalConfig
    problems: Sequence[Problem | EvalProblem]
    num_dropped: int = 0
    _answers: Any = None

    @property
    def records(self) -> list[Problem]:
        """The problems as training records, for the overlap check."""
        return [_record(problem) for problem in self.problems]

    def is_due(self, step: int, num_steps: int) -> bool:
        if not self.problems:
            return False
        every = self.config.every_steps
        return step in (0, num_steps) or (every > 0 and step % every == 0)

    def evaluate(
        self, coder: Role, client: SandboxClient, step: int, seed: int, progress: Progress
    ) -> dict[str, float]:
        """Samples and judges; avg@n ("pass_rate") and pass@n, over all hidden tests.

        The pass rate of a benchmark suite is its stricter one (base and plus inputs).
        """
        samples = self._sample(coder, step, seed, progress)
        with progress.phase("evaluation: judging", total=len(samples)):
            # The leading process judges, in its sandbox; all must see the same figures.
            result: dict[str, Any] = {}
            if distributed.is_leader():
                result = self._judge(samples, client, lambda done, total: progress.advance())
            result = distributed.exchange(result)[0]
        values = {"eval/coder/unknown": float(result["num_unknown"])}
        count = self.config.num_samples
        parts = result["avg_at_k"]
        for part in parts:
            name = "pass_rate" if part == ("plus" if "plus" in parts else "base") else f"avg_{part}"
            values[f"eval/coder/{name}"] = parts[part].get(f"avg@{count}", 0.0)
            if count > 1:
                suffix = "" if name == "pass_rate" else f"_{part}"
                best = result["pass_at_k"][part].get(f"pass@{count}")
                if best is not None:
                    values[f"eval/coder/pass_at_{count}{suffix}"] = best
        return values

    def _sample(self, coder: Role, step: int, seed: int, progress: Progress) -> list[EvalSample]:
        count = self.config.num_samples

        def respond(
            messages: Sequence[Sequence[Message]], num_samples: int
        ) -> Iterator[tuple[int, Sequence[str]]]:
            prompts = [coder.tokenizer.encode_chat(chat) for chat in messages]
            ids = [f"eval/{step}/{index}" for index in range(len(prompts))]
            groups = coder.sample(
                prompts, ids, num_samples, seed, self.config.sampling, progress.advance
            )
            for index, group in enumerate(groups):
                yield index, coder.texts(group)

        with progress.phase("evaluation: sampling", total=len(self.problems) * count):
            answered = generate_samples(self.problems, respond, count)
            return [sample for of_problem in answered for sample in of_problem]

    def _judge(
        self,
        samples: Sequence[EvalSample],
        client: SandboxClient,
        advance: Callable[[int, int], None],
    ) -> dict[str, Any]:
        if self.config.suite == "embedded":
            return evaluate_embedded(samples, self.records, client, advance)
        suite = [problem for problem in self.problems if isinstance(problem, EvalProblem)]
        if self._answers is None:
            self._answers = runner.reference_answers(suite, client)
        return runner.evaluate(samples, suite, self._answers, client, advance)


def load_holdout(config: EvalConfig, fits: Callable[[Problem], bool]) -> Holdout:
    """Loads the hold-out problems whose prompts fit.

    Raises:
      ConfigurationError: an unknown suite.
    """
    if not config.suite:
        return Holdout(config, [])
    path = resolve_path(config.path) if config.path else ""
    problems: Sequence[Problem | EvalProblem]
    if config.suite == "embedded":
        problems = load_problems("embedded", path, "test", path_key="EvalConfig.path")
    elif config.suite in SUITES:
        problems = load_suite(config.suite, path, path_key="EvalConfig.path")
    else:
        raise ConfigurationError(
            f"EvalConfig.suite={config.suite!r}; use 'embedded', "
            f"{', '.join(map(repr, SUITES))}, or '' for none"
        )
    if config.max_problems:
        problems = problems[: config.max_problems]
    kept = [problem for problem in problems if fits(_record(problem))]
    return Holdout(config, kept, len(problems) - len(kept))


def _record(problem: Problem | EvalProblem) -> Problem:
    return problem.to_problem() if isinstance(problem, EvalProblem) else problem
