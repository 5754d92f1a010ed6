"""The configuration of a training run, and the checks made before anything is loaded.

Constructors are registered with gin under their own short names, so that a run file and a flag
spell them alike: `TrainConfig.num_steps = 10` and `--gin.TrainConfig.num_steps=10`.
"""

import dataclasses
from typing import Literal

import gin
import jax

from codea1_jax import offload
from codea1_jax.coevo.config import CoEvolutionConfig, official, paper
from codea1_jax.gin_io import ConfigurationError, resolve_path
from codea1_jax.mesh import MeshError, resolve_sizes
from codea1_jax.models.config import ConfigError, Qwen2Config
from codea1_jax.obs import wandb_log
from codea1_jax.rl.learner import LearnerConfig
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig
from codea1_jax.rollout.engine import RolloutConfig
from codea1_jax.rollout.types import SamplingParams


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Shape of the device mesh; one axis may be -1 (whatever is left)."""

    data: int = 1
    fsdp: int = -1
    tensor: int = 1


@dataclasses.dataclass(frozen=True)
class RoleConfig:
    """One role: which model it starts from, how it samples, how it learns.

    Attributes:
      name: "coder" or "tester".
      checkpoint: Hugging Face directory or hub id; also the frozen KL reference.
      compute_dtype: "float32" or "bfloat16"; master weights and moments are float32.
      remat: "none", "dots" or "full": what the backward pass recomputes.
      attention: "auto" (on TPUs Pallas kernels where they take the sizes), "xla" or "pallas".
      max_prompt_tokens: longer coder prompts are dropped at load and counted; longer tester
        prompts lose the end of the shown code.
      is_trained: False freezes the role: it samples and is judged, but is never updated.
      offload_optimizer: Adam's moments wait in the host's memory and are on the devices for the
        optimizer's program only; results are the same.
      offload_reference: the frozen reference waits in the host's memory and is on the devices while
        its log-probs are computed; results are the same.
    """

    name: Literal["coder", "tester"]
    checkpoint: str
    optimizer: OptimizerConfig
    loss: LossConfig
    learner: LearnerConfig
    rollout: RolloutConfig
    sampling: SamplingParams
    max_prompt_tokens: int
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    remat: Literal["none", "dots", "full"] = "none"
    attention: Literal["auto", "xla", "pallas"] = "auto"
    is_trained: bool = True
    offload_optimizer: bool = False
    offload_reference: bool = False


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Training problems.

    Attributes:
      dataset: a name of `data.sources` ("embedded", "kodcode", "mbpp", ...).
      path: local file or folder of that set; empty: its public home (or the package's own copy).
      seed: seed of the data order.
      max_problems: keep only the first so many (0: all).
      overlap: what to do with training problems that meet evaluation problems by id, function name
        or a run of 13 words: "refuse" to start, "drop" them, or "allow" them.
    """

    dataset: str
    path: str = ""
    seed: int = 1
    max_problems: int = 0
    overlap: Literal["refuse", "drop", "allow"] = "refuse"


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Hold-out evaluation of the coder during training.

    Attributes:
      suite: "embedded", "humaneval_plus", "mbpp_plus", or "" for none.
      path: local file of that suite; empty: its public home (or the package's own copy).
      every_steps: also before the first and after the last step; 0: only those two.
      num_samples: samples per problem (avg@n).
      max_problems: only the first so many problems (0: all).
    """

    suite: str = ""
    path: str = ""
    every_steps: int = 10
    num_samples: int = 1
    max_problems: int = 0
    sampling: SamplingParams = SamplingParams(temperature=0.7, top_p=0.95)


@dataclasses.dataclass(frozen=True)
class SandboxConfig:
    """Where programs run.

    Attributes:
      address: host:port of a running service, or several with commas between them; empty: one is
        started beside the trainer.
      num_slots: runs at a time of the started service (0: two more than cores).
      deadline_s: a run that the service has not answered after this long is unknown.
      min_tier: the started service refuses to run with weaker isolation ("A", "B", "C", "D").
      ca_file: certificates (PEM) that the services' ones come from, or "system"; empty: plain text.
      cert_file: our own certificate (PEM), where the services ask for one; with key_file.
      key_file: the key of cert_file.
      token_file: file with the token to show.
    """

    address: str = ""
    num_slots: int = 0
    deadline_s: float = 180.0
    min_tier: str = "B"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A whole run.

    Attributes:
      num_steps: training steps; also the length of the learning-rate schedule unless
        `OptimizerConfig.total_steps` says otherwise. 0: only the evaluation before the first step.
      problems_per_step: problems (questions) in one step.
      num_minibatches: optimizer steps per training step and role.
      seed: seed of sampling.
      save_every_steps: checkpoints; one is always written at the end and on Ctrl-C.
      keep_checkpoints: the newest so many stay.
      keep_best_checkpoints: so many with the highest hold-out pass rate stay as well.
      share_weights: one set of weights, the coder's, plays both roles (self-play); the tester's
        checkpoint, optimizer and loss are not used.
      allow_changed_config: continue a run whose configuration differs from its checkpoint's.
      wandb_project: Weights & Biases project that gets the metrics too; needs the extra `wandb`.
    """

    roles: tuple[RoleConfig, ...]
    coevolution: CoEvolutionConfig
    data: DataConfig
    num_steps: int
    problems_per_step: int
    num_minibatches: int = 2
    seed: int = 0
    mesh: MeshConfig = MeshConfig()
    sandbox: SandboxConfig = SandboxConfig()
    evaluation: EvalConfig = EvalConfig()
    save_every_steps: int = 50
    keep_checkpoints: int = 2
    keep_best_checkpoints: int = 0
    share_weights: bool = False
    allow_changed_config: bool = False
    wandb_project: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", tuple(self.roles))

    def role(self, name: str) -> RoleConfig:
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)


for _constructor in (
    CoEvolutionConfig,
    DataConfig,
    EvalConfig,
    LearnerConfig,
    LossConfig,
    MeshConfig,
    OptimizerConfig,
    RoleConfig,
    RolloutConfig,
    SamplingParams,
    SandboxConfig,
    TrainConfig,
    paper,
    official,
):
    gin.external_configurable(_constructor, _constructor.__name__)


def validate(config: TrainConfig, num_devices: int) -> dict[str, Qwen2Config | None]:
    """Checks everything that can be checked without loading weights or data.

    Returns:
      The model sizes of each role, read from its checkpoint's `config.json` where that is local.

    Raises:
      ConfigurationError: names the key and the fix.
    """
    _check_run(config)
    try:
        data, fsdp, _ = resolve_sizes(**dataclasses.asdict(config.mesh), num_devices=num_devices)
    except MeshError as error:
        raise ConfigurationError(f"MeshConfig: {error}") from error
    rows = data * fsdp
    models: dict[str, Qwen2Config | None] = {}
    for role in config.roles:
        models[role.name] = _check_role(role, config, rows)
    for key, path in (
        ("DataConfig.path", config.data.path),
        ("EvalConfig.path", config.evaluation.path),
    ):
        if path and not resolve_path(path).exists():
            raise ConfigurationError(f"{key}: {path} does not exist; give a file or folder")
    return models


def _check_run(config: TrainConfig) -> None:
    names = [role.name for role in config.roles]
    if names != ["coder", "tester"]:
        raise ConfigurationError(f"TrainConfig.roles: expected coder and tester, got {names}")
    for key, least in (
        ("num_steps", 0),
        ("problems_per_step", 1),
        ("num_minibatches", 1),
        ("save_every_steps", 1),
        ("keep_checkpoints", 1),
        ("keep_best_checkpoints", 0),
    ):
        value = getattr(config, key)
        if not isinstance(value, int) or value < least:
            raise ConfigurationError(
                f"TrainConfig.{key}={value!r}; it must be an integer >= {least}"
            )
    every = config.evaluation.every_steps if config.evaluation.suite else 0
    if config.keep_best_checkpoints and (every < 1 or config.save_every_steps % every):
        raise ConfigurationError(
            f"TrainConfig.keep_best_checkpoints={config.keep_best_checkpoints} needs an evaluation "
            "at every checkpoint: set EvalConfig.suite, and EvalConfig.every_steps to a divisor of "
            f"TrainConfig.save_every_steps={config.save_every_steps}"
        )
    if config.wandb_project and not wandb_log.is_installed():
        raise ConfigurationError(
            f"TrainConfig.wandb_project={config.wandb_project!r} needs wandb: "
            "pip install 'codea1-jax[wandb]', or leave the key out"
        )
    if config.num_steps > 0 and not any(role.is_trained for role in config.roles):
        raise ConfigurationError(
            f"TrainConfig.num_steps={config.num_steps} but no role has RoleConfig.is_trained=True; "
            "train one, or set TrainConfig.num_steps=0 to evaluate only"
        )
    evolution = config.coevolution
    for name, count in (
        ("coder", config.problems_per_step * evolution.num_solutions),
        ("tester", config.problems_per_step * evolution.groups_kept * evolution.num_suites),
    ):
        if count % config.num_minibatches:
            raise ConfigurationError(
                f"TrainConfig.num_minibatches={config.num_minibatches} does not divide the "
                f"{count} sequences of the {name}'s step; change it or problems_per_step"
            )
    if config.share_weights:
        _check_shared(config)


def _check_shared(config: TrainConfig) -> None:
    coder, tester = config.role("coder"), config.role("tester")
    if tester.is_trained:
        raise ConfigurationError(
            "tester/RoleConfig.is_trained must be False with TrainConfig.share_weights: the "
            "coder's weights are the ones that learn, from both roles' answers"
        )
    if coder.learner != tester.learner:
        raise ConfigurationError(
            "LearnerConfig must be the same for both roles with TrainConfig.share_weights"
        )
    evolution = config.coevolution
    if evolution.test_source == "golden" or evolution.num_solutions != evolution.num_suites:
        raise ConfigurationError(
            "TrainConfig.share_weights learns from codes and suites in one batch: it needs a "
            f"tester and num_solutions={evolution.num_solutions} equal to "
            f"num_suites={evolution.num_suites}"
        )


def _check_role(role: RoleConfig, config: TrainConfig, rows: int) -> Qwen2Config | None:
    scope = f"{role.name}/RoleConfig"
    for key in ("offload_optimizer", "offload_reference"):
        if getattr(role, key) and not offload.has_host_memory():
            raise ConfigurationError(
                f"{scope}.{key}=True, but {jax.default_backend()} devices have no memory of kind "
                f"{offload.HOST!r}; set it to False"
            )
    directory = resolve_path(role.checkpoint)
    looks_like_hub_id = role.checkpoint.count("/") == 1 and not directory.parent.exists()
    if not directory.is_dir() and not looks_like_hub_id:
        raise ConfigurationError(
            f"{scope}.checkpoint: {role.checkpoint!r} is neither a directory nor a hub id"
        )
    if role.rollout.rows % rows:
        raise ConfigurationError(
            f"{role.name}/RolloutConfig.rows={role.rollout.rows} is not divisible by the mesh's "
            f"data x fsdp = {rows}"
        )
    longest = role.max_prompt_tokens + role.sampling.max_new_tokens
    if longest > max(role.learner.length_buckets):
        raise ConfigurationError(
            f"{scope}: max_prompt_tokens + SamplingParams.max_new_tokens = {longest} exceeds the "
            f"largest of LearnerConfig.length_buckets={role.learner.length_buckets}; add a bucket"
        )
    if role.max_prompt_tokens > max(role.rollout.prompt_buckets):
        raise ConfigurationError(
            f"{scope}.max_prompt_tokens={role.max_prompt_tokens} exceeds the largest of "
            f"{role.name}/RolloutConfig.prompt_buckets={role.rollout.prompt_buckets}"
        )
    if not directory.is_dir():
        return None
    try:
        model = Qwen2Config.from_directory(directory)
    except ConfigError as error:
        raise ConfigurationError(f"{scope}.checkpoint: {error}") from error
    if longest > model.max_position_embeddings:
        raise ConfigurationError(
            f"{scope}: max_prompt_tokens + SamplingParams.max_new_tokens = {longest} exceeds the "
            f"model's {model.max_position_embeddings} positions"
        )
    return model
