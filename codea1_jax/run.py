"""A run: what a step works with, how that is built, saved and restored.

The order of a step is the loop's business (`train.py`).
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

import jax

from codea1_jax import offload
from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.ckpt.run_state import RunState, check_same_run
from codea1_jax.coevo.judging import Judge
from codea1_jax.coevo.mistake_book import MistakeBook
from codea1_jax.coevo.oracle import Oracle
from codea1_jax.config import SandboxConfig, TrainConfig
from codea1_jax.data.cursor import DataCursor
from codea1_jax.data.record import Problem
from codea1_jax.data.sources import dataset_fingerprint, load_problems
from codea1_jax.gin_io import ConfigurationError, resolve_path
from codea1_jax.holdout import Holdout
from codea1_jax.interrupt import InterruptGuard
from codea1_jax.obs.progress import Progress
from codea1_jax.problems import select_problems, with_tester_prompt
from codea1_jax.roles import Role, load_role, shared_role
from codea1_jax.sandbox.client import SandboxClient, Security
from codea1_jax.sandbox.local import local_service


@dataclasses.dataclass
class Run:
    """Everything a step needs."""

    config: TrainConfig
    run_dir: pathlib.Path
    coder: Role
    tester: Role
    problems: list[Problem]
    holdout: Holdout
    cursor: DataCursor
    book: MistakeBook
    judge: Judge
    client: SandboxClient
    progress: Progress
    guard: InterruptGuard

    @property
    def roles(self) -> tuple[Role, Role]:
        return self.coder, self.tester


@contextlib.contextmanager
def connect(config: SandboxConfig) -> Iterator[SandboxClient]:
    """A client of the configured service, or of one started beside the trainer.

    Raises:
      ConfigurationError: the service does not answer, or a file that is named cannot be used.
    """
    with contextlib.ExitStack() as stack:
        address = config.address
        security = Security(config.ca_file, config.cert_file, config.key_file, config.token_file)
        if not address:
            security = Security()
            address = stack.enter_context(
                local_service(slots=config.num_slots or None, min_tier=config.min_tier)
            )
        try:
            client = stack.enter_context(
                SandboxClient(address, deadline_s=config.deadline_s, security=security)
            )
        except ValueError as error:
            raise ConfigurationError(f"SandboxConfig: {error}") from error
        try:
            client.info()
        except ConnectionError as error:
            raise ConfigurationError(
                f"SandboxConfig.address={address!r}: {error}; start `codea1-sandbox serve` there, "
                "or leave the address empty to start one beside the trainer"
            ) from error
        yield client


def build(
    config: TrainConfig,
    run_dir: pathlib.Path,
    mesh: jax.sharding.Mesh,
    client: SandboxClient,
    progress: Progress,
    guard: InterruptGuard,
) -> Run:
    """Loads data, then models: what is cheap to find wrong comes first."""
    path = resolve_path(config.data.path) if config.data.path else ""
    problems = load_problems(config.data.dataset, path, "train", path_key="DataConfig.path")
    references: dict = {}
    coder = load_role(config.role("coder"), mesh, references)
    problems, holdout = select_problems(config, coder, problems, progress.say)
    if config.share_weights:
        tester = shared_role(config.role("tester"), coder, mesh)
    else:
        tester = load_role(config.role("tester"), mesh, references)
    if config.coevolution.test_source == "tester":
        problems = with_tester_prompt(config, tester, problems)
    info = client.info()
    progress.say(
        f"{len(problems)} problems to train on, {len(holdout.problems)} held out"
        f"{f' ({holdout.num_dropped} more are too long)' if holdout.num_dropped else ''}; "
        f"{coder.model.config.num_params() / 1e6:.1f} M + "
        f"{tester.model.config.num_params() / 1e6:.1f} M parameters on {mesh.size} device(s); "
        f"sandbox tier {info['tier']}, {info['slots']} slots"
    )
    return Run(
        config=config,
        run_dir=run_dir,
        coder=coder,
        tester=tester,
        problems=problems,
        holdout=holdout,
        cursor=DataCursor(len(problems), config.problems_per_step, config.data.seed),
        book=MistakeBook.from_config(config.coevolution),
        judge=Judge(client, Oracle(client), config.coevolution),
        client=client,
        progress=progress,
        guard=guard,
    )


def save(
    run: Run, manager: CheckpointManager, step: int, config_text: str, score: float | None
) -> None:
    """Saves the whole state of the run after `step`, with what its evaluation gave, if any."""
    state = RunState(
        step=step,
        arrays={role.name: role.state for role in run.roles if role.config.is_trained},
        policy_versions={role.name: role.policy_version for role in run.roles},
        book=run.book.to_state(),
        cursor=run.cursor.state(),
        dataset=dataset_fingerprint(run.problems),
        config=config_text,
    )
    manager.save(step, state.arrays, state.meta(), score)


def restore(run: Run, manager: CheckpointManager, config_text: str) -> int:
    """Continues from the latest checkpoint, if there is one. Returns its step, else 0."""
    step = manager.latest_step()
    if step is None:
        return 0
    meta = manager.restore_meta(step)
    check_same_run(
        meta,
        dataset=dataset_fingerprint(run.problems),
        config=config_text,
        is_change_allowed=run.config.allow_changed_config,
    )
    trained = [role for role in run.roles if role.config.is_trained]
    for role in trained:
        offload.free(role.state)  # there may be no room for two
    arrays = manager.restore_arrays(
        step, {role.name: role.learner.abstract_state() for role in trained}
    )
    for role in trained:
        role.state = arrays[role.name]
    for role in run.roles:
        role.policy_version = meta["policy_versions"][role.name]
    if run.config.share_weights:
        run.tester.follow(run.coder)
    evolution = run.config.coevolution
    run.book = MistakeBook.from_state(meta["book"], evolution.book_rule, evolution.book_cap)
    run.cursor.restore(meta["cursor"])
    run.progress.say(f"continuing after step {step} of {manager.directory}")
    return step
