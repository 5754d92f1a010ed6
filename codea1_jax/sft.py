"""Supervised fine-tuning of one model on both roles' examples: the method's SFT baseline, and the
way the embedded checkpoint was made.

Reads a Hugging Face directory (or starts a tiny model from nothing), learns the answers' tokens,
writes a Hugging Face directory that both roles can start from. Every start is a resume: a run that
was stopped goes on after its last checkpoint, with the examples it would have seen (they are a pure
function of the seed and the step). Left out: validation; `codea1 eval` does that.
"""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import time
from typing import Literal

import gin
import jax
import numpy as np

from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.config import MeshConfig
from codea1_jax.data import sources
from codea1_jax.data.embedded_problems import SolvedProblem, load_embedded, warm_up_set
from codea1_jax.data.sft_examples import ExampleMix, SftExamples, tokenize
from codea1_jax.data.tiny_tokenizer import TinyModelSizes, write_tiny_directory
from codea1_jax.gin_io import ConfigurationError
from codea1_jax.interrupt import Interrupted, InterruptGuard
from codea1_jax.mesh import make_mesh
from codea1_jax.models import hf_io
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.tokenizer import ChatTokenizer
from codea1_jax.obs.metrics import MetricsWriter
from codea1_jax.obs.progress import Progress
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch
from codea1_jax.rl.learner import Learner, LearnerConfig, TrainState
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig
from codea1_jax.typing import Params

WARM_UP = "embedded_warm_up"


@dataclasses.dataclass(frozen=True)
class SftData:
    """Where examples come from.

    Attributes:
      dataset: "embedded_warm_up" (problems drawn from the embedded families, none of them held
        out) or a name of `data.sources`, whose references and golden tests are learnt.
      path: local file or folder of that set; empty: its public home.
      num_problems: problems drawn for the warm-up; of another set, only the first so many (0: all).
      tests_per_problem: different tests per warm-up problem that suites are drawn from.
      mix: what is asked and answered.
    """

    dataset: str = WARM_UP
    path: str = ""
    num_problems: int = 6000
    tests_per_problem: int = 24
    mix: ExampleMix = dataclasses.field(default_factory=ExampleMix)


@dataclasses.dataclass(frozen=True)
class SftConfig:
    """A fine-tuning run.

    Attributes:
      checkpoint: Hugging Face directory to start from; empty: `tiny`, from random weights.
      num_steps, rows_per_step: optimizer steps, and conversations in each.
      tiny, tiny_vocab_size: sizes of the model that is started from nothing; the vocabulary may
        turn out smaller.
    """

    num_steps: int
    rows_per_step: int
    optimizer: OptimizerConfig
    learner: LearnerConfig
    data: SftData = dataclasses.field(default_factory=SftData)
    checkpoint: str = ""
    tiny: TinyModelSizes = dataclasses.field(default_factory=TinyModelSizes)
    tiny_vocab_size: int = 768
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Literal["none", "dots", "full"] = "none"
    attention: Literal["auto", "xla", "pallas"] = "auto"
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    seed: int = 0
    log_every_steps: int = 10
    save_every_steps: int = 200

    def __post_init__(self) -> None:
        for name in ("num_steps", "rows_per_step", "log_every_steps", "save_every_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"SftConfig.{name}={getattr(self, name)}; it must be at least 1")


for _constructor in (ExampleMix, SftConfig, SftData, TinyModelSizes):
    gin.external_configurable(_constructor, _constructor.__name__)


def run_sft(config: SftConfig, run_dir: str | pathlib.Path) -> pathlib.Path | None:
    """Fine-tunes and writes `run_dir/hf`, a Hugging Face directory.

    Also written: `run_dir/metrics.jsonl` and TensorBoard, one row every `log_every_steps` steps
    (means over those steps), and `run_dir/checkpoints`.

    Returns:
      The directory; None when a stop was asked for (the run has saved itself and can go on).

    Raises:
      ConfigurationError: names the key and the fix.
    """
    run_dir = pathlib.Path(run_dir)
    mesh = make_mesh(**dataclasses.asdict(config.mesh))
    rows = load_rows(config.data, config.seed)
    start = _start_directory(config, rows, run_dir / "untrained")
    model = LanguageModel(
        Qwen2Config.from_directory(start), config.compute_dtype, config.remat, config.attention
    )
    learner = Learner(model, mesh, config.optimizer, LossConfig(), config.learner)
    checkpoints = CheckpointManager(run_dir / "checkpoints", keep_last=1)
    state, first_step = _restore_or_start(config, learner, checkpoints)
    progress = Progress(config.num_steps)
    progress.say(
        f"{model.config.num_params() / 1e6:.2f} M parameters, {len(rows)} problems, "
        f"{config.rows_per_step} conversations a step, from step {first_step}"
    )
    with contextlib.ExitStack() as stack:
        guard = stack.enter_context(InterruptGuard(progress.say))
        writer = stack.enter_context(contextlib.closing(MetricsWriter(run_dir, first_step - 1)))
        batches = stack.enter_context(_Batches(config, rows, ChatTokenizer(start), first_step))
        window = _Window()
        for step in range(first_step, config.num_steps + 1):
            progress.start_step(step)
            with progress.phase("examples"):
                batch = batches.take()
            with progress.phase("update"):
                state, metrics = learner.sft_update(state, batch, step)
            window.add(metrics, batch)
            if step % config.log_every_steps == 0 or step == config.num_steps:
                values = window.close() | {"data/num_too_long": batches.num_too_long}
                writer.write(step, values)
                progress.finish_step(
                    f"loss {values['loss']:.4f}  {values['speed/tokens_per_s']:.0f} tokens/s"
                )
            if step % config.save_every_steps == 0:
                checkpoints.save(step, state, _identity(config))
            try:
                guard.check()
            except Interrupted:
                checkpoints.save(step, state, _identity(config))
                progress.say(f"saved at step {step}; the same command goes on from there")
                return None
    checkpoints.save(config.num_steps, state, _identity(config))
    checkpoints.close()
    target = run_dir / "hf"
    hf_io.save_params(state.params, model, target, source=start)
    progress.say(f"wrote {target}")
    return target


def _identity(config: SftConfig) -> dict[str, str]:
    """What makes a run the same run; how often it logs and saves does not."""
    same = dataclasses.replace(config, log_every_steps=1, save_every_steps=1)
    return {"config": repr(same)}


def _restore_or_start(
    config: SftConfig, learner: Learner, checkpoints: CheckpointManager
) -> tuple[TrainState, int]:
    """The state to go on from and the number of the next step."""
    step = checkpoints.latest_step()
    if step is None:
        return learner.init_state(_start_params(config, learner.model, learner.mesh)), 1
    if checkpoints.restore_meta(step) != _identity(config):
        raise ConfigurationError(
            f"{checkpoints.directory} belongs to a run with another configuration; give another "
            "--run_dir, or restore the old configuration"
        )
    return checkpoints.restore_arrays(step, learner.abstract_state()), step + 1


def load_rows(data: SftData, seed: int) -> list[SolvedProblem]:
    """The problems to learn from, with their solutions."""
    if data.dataset == WARM_UP:
        held_out = [problem for problem in load_embedded() if problem.split == "test"]
        return warm_up_set(data.num_problems, seed, data.tests_per_problem, held_out)
    problems = sources.load_problems(data.dataset, data.path, "train")
    problems = problems[: data.num_problems or None]
    return [SolvedProblem(problem, (problem.reference,)) for problem in problems]


def _start_directory(
    config: SftConfig, rows: list[SolvedProblem], new: pathlib.Path
) -> pathlib.Path:
    """The directory with config and tokenizer; written first when the model is a new one."""
    if not config.checkpoint:
        write_tiny_directory(new, rows, config.tiny_vocab_size, config.tiny)
        return new
    directory = pathlib.Path(config.checkpoint)
    if not (directory / "config.json").exists():
        raise ConfigurationError(
            f"SftConfig.checkpoint: {directory} has no config.json; give a Hugging Face model "
            "directory, or '' to start a tiny model from random weights"
        )
    return directory


def _start_params(config: SftConfig, model: LanguageModel, mesh: jax.sharding.Mesh) -> Params:
    if config.checkpoint:
        return hf_io.load_params(config.checkpoint, model, mesh, np.float32)
    return model.init(jax.random.key(config.seed))


class _Batches:
    """Batches of one step after the other, each made while the one before it is learnt.

    Conversations longer than every bucket are left out and counted.
    """

    def __init__(
        self,
        config: SftConfig,
        rows: list[SolvedProblem],
        tokenizer: ChatTokenizer,
        first_step: int,
    ):
        self._examples = SftExamples(rows, config.data.mix, config.seed)
        self._tokenizer = tokenizer
        self._num_rows = config.rows_per_step
        self._buckets = config.learner.length_buckets
        self.num_too_long = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._step = first_step
        self._ahead = self._pool.submit(self._make, first_step)

    def __enter__(self) -> "_Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self) -> TrainBatch:
        """The batch of the next step."""
        batch = self._ahead.result()
        self._step += 1
        self._ahead = self._pool.submit(self._make, self._step)
        return batch

    def _make(self, step: int) -> TrainBatch:
        samples: list[TrainSample] = []
        index = 0
        while len(samples) < self._num_rows:
            if index > 20 * self._num_rows:
                raise ConfigurationError(
                    f"LearnerConfig.length_buckets={self._buckets}: hardly any conversation fits; "
                    "add a longer bucket"
                )
            tokenized = tokenize(self._examples[step, index], self._tokenizer)
            index += 1
            if len(tokenized.tokens) > self._buckets[-1]:
                self.num_too_long += 1
                continue
            start = tokenized.prompt_length
            samples.append(TrainSample(tokenized.tokens[:start], tokenized.tokens[start:]))
        return build_batch(samples, length_buckets=self._buckets, pad_id=self._tokenizer.pad_id)


class _Window:
    """Means over the steps since the last row."""

    def __init__(self) -> None:
        self._metrics: list[dict[str, float]] = []
        self._num_tokens, self._start = 0, time.monotonic()

    def add(self, metrics: dict[str, float], batch: TrainBatch) -> None:
        self._metrics.append(metrics)
        self._num_tokens += int(batch.lengths.sum())

    def close(self) -> dict[str, float]:
        values = {
            name: float(np.mean([metrics[name] for metrics in self._metrics]))
            for name in self._metrics[-1]
        }
        seconds = time.monotonic() - self._start
        values["speed/tokens_per_s"] = self._num_tokens / seconds
        values["time/step_s"] = seconds / len(self._metrics)
        self.__init__()  # type: ignore[misc]
        return values
