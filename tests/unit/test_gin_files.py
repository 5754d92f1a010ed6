"""Every shipped run, with every baseline and ablation on top: each must bind, and must change what
its name says and nothing else. A file that binds but does nothing makes a comparison of equals."""

import dataclasses
import pathlib
from typing import Any

import pytest

from codea1_jax.coevo.config import official
from codea1_jax.config import TrainConfig, validate
from codea1_jax.gin_io import ConfigurationError, build
from codea1_jax.sft import SftConfig

GIN = pathlib.Path(__file__).resolve().parents[2] / "gin"
RUNS = sorted(path.stem for path in (GIN / "runs").glob("*.gin") if path.stem[:4] != "sft_")

# What each file is about: (path into the configuration, value).
ABLATIONS: dict[str, dict[str, Any]] = {
    "alpha_0": {"coevolution.alpha": 0.0},
    "alpha_025": {"coevolution.alpha": 0.25},
    "alpha_050": {"coevolution.alpha": 0.5},
    "alpha_075": {"coevolution.alpha": 0.75},
    "alpha_1": {"coevolution.alpha": 1.0},
    "no_book": {"coevolution.use_book": False},
    "black_box": {"coevolution.white_box": False},
    "no_predicted_answer": {"coevolution.predicted_answer": False},
    "k_3": {"coevolution.tests_per_suite": 3},
    "k_5": {"coevolution.tests_per_suite": 5},
    "k_8": {"coevolution.tests_per_suite": 8},
    "m_4": {"coevolution.num_solutions": 4},
    "m_16": {"coevolution.num_solutions": 16},
    "n_4": {"coevolution.num_suites": 4},
    "n_8": {"coevolution.num_suites": 8},
    "n_16": {"coevolution.num_suites": 16},
    "l_1": {"coevolution.groups_kept": 1},
    "l_2": {"coevolution.groups_kept": 2},
    "l_4": {"coevolution.groups_kept": 4},
    "official": {},
}
CHECKPOINT = "somebody/sft-tester"
BASELINES: dict[str, dict[str, Any]] = {
    "base": {
        "num_steps": 0,
        "roles.0.is_trained": False,
        "roles.1.is_trained": False,
    },
    "golden": {
        "roles.1.is_trained": False,
        "coevolution.test_source": "golden",
        "coevolution.use_book": False,
    },
    "self_play": {
        "share_weights": True,
        "roles.1.is_trained": False,
        "coevolution.suites_for": "question",
        "coevolution.white_box": False,
        "coevolution.groups_kept": 1,
    },
    "frozen_tester": {"roles.1.is_trained": False},
    "sft_tester": {
        "roles.1.is_trained": False,
        "roles.1.checkpoint": CHECKPOINT,
        "coevolution.prompt_style": "simple",
    },
}


def bind(run: str, *extra: str, flags: tuple[str, ...] = ()) -> TrainConfig:
    files = [str(GIN / "runs" / f"{run}.gin"), *(str(GIN / f"{name}.gin") for name in extra)]
    config = build(TrainConfig, files, flags)
    validate(config, num_devices=1)
    return config


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of nested dataclasses and tuples of them, by dotted path."""
    if dataclasses.is_dataclass(value):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {prefix: value}
    leaves: dict[str, Any] = {}
    for name, item in items:
        leaves |= flat(item, f"{prefix}.{name}".removeprefix("."))
    return leaves


def assert_changes(before: TrainConfig, after: TrainConfig, wanted: dict[str, Any]) -> None:
    old, new = flat(before), flat(after)
    assert old.keys() == new.keys()
    assert {name: value for name, value in new.items() if value != old[name]} == {
        name: value for name, value in wanted.items() if value != old[name]
    }
    assert {name: new[name] for name in wanted} == wanted


def test_every_file_is_named_here() -> None:
    names = {folder: {p.stem for p in (GIN / folder).glob("*.gin")} for folder in FOLDERS}
    assert names == FOLDERS
    assert len(RUNS) == 7


FOLDERS = {"ablations": set(ABLATIONS), "baselines": {*BASELINES, "sft_recipe"}}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ABLATIONS)
def test_ablation_changes_what_it_is_about(run: str, name: str) -> None:
    before, after = bind(run), bind(run, f"ablations/{name}")
    wanted = ABLATIONS[name]
    if name == "official":
        kept = ("num_solutions", "num_suites", "groups_kept", "alpha", "prompt_style")
        of_run = {field: getattr(before.coevolution, field) for field in kept}
        expected = flat(official(**of_run))
        wanted = {f"coevolution.{field}": value for field, value in expected.items()}
        assert expected["tests_per_suite"] == 8
    assert_changes(before, after, wanted)


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name != "official"])
def test_ablation_works_with_the_official_preset_too(name: str) -> None:
    """A switch bound for one preset only is silently off under the other."""
    before = bind("smoke", "ablations/official")
    assert_changes(
        before, bind("smoke", "ablations/official", f"ablations/{name}"), ABLATIONS[name]
    )


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", BASELINES)
def test_baseline_changes_what_it_is_about(run: str, name: str, preset: str) -> None:
    flags = [f"PRESET = @{preset}()"]
    before = bind(run, flags=tuple(flags))
    wanted = dict(BASELINES[name])
    if name == "self_play":
        wanted["coevolution.num_suites"] = before.coevolution.num_solutions
    if name == "sft_tester":
        flags.append(f"SFT_CHECKPOINT = {CHECKPOINT!r}")
    assert_changes(before, bind(run, f"baselines/{name}", flags=tuple(flags)), wanted)


def test_sft_tester_asks_for_its_checkpoint() -> None:
    with pytest.raises(ConfigurationError, match="SFT_CHECKPOINT has no value"):
        bind("smoke", "baselines/sft_tester")


@pytest.mark.parametrize("run", RUNS)
def test_sft_recipe_binds_on_top_of_a_run(run: str) -> None:
    files = [str(GIN / "runs" / f"{run}.gin"), str(GIN / "baselines" / "sft_recipe.gin")]
    config = build(SftConfig, files)
    role = bind(run).role("tester")
    assert config.checkpoint == role.checkpoint
    assert config.learner == role.learner
    assert config.compute_dtype == role.compute_dtype
    assert (config.data.mix.tester_share, config.data.mix.buggy_share) == (1.0, 1.0)
    assert config.data.mix.tester_style == "simple"
    assert (config.optimizer.peak_lr, config.optimizer.total_steps) == (1e-5, config.num_steps)


def test_checkpoint_recipes_bind() -> None:
    assert build(SftConfig, [str(GIN / "runs" / "sft_tiny.gin")]).checkpoint == ""
    wide = build(SftConfig, [str(GIN / "runs" / "sft_wide.gin")])
    assert wide.checkpoint == "codea1_jax/assets/tiny"
    assert (wide.data.mix.black_box_share, wide.data.mix.no_answer_share) == (0.25, 0.45)
    assert wide.optimizer.total_steps == wide.num_steps == 500


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("tester/RoleConfig.is_trained = True", "is_trained must be False"),
        ("NUM_SUITES = 4", "num_suites=4"),
        ("paper.white_box = True", "white_box=False"),
        ("tester/LearnerConfig.micro_batch_tokens = 8192", "LearnerConfig must be the same"),
        ("paper.test_source = 'golden'", "use_book must be False"),
    ],
)
def test_self_play_refuses_what_it_cannot_do(binding: str, words: str) -> None:
    flags = [binding]
    if "LearnerConfig" in binding:
        flags.append("tester/RoleConfig.learner = @tester/LearnerConfig()")
    with pytest.raises(ConfigurationError, match=words):
        bind("smoke", "baselines/self_play", flags=tuple(flags))


def test_a_run_that_trains_nothing_is_refused() -> None:
    flags = ("coder/RoleConfig.is_trained = False", "tester/RoleConfig.is_trained = False")
    with pytest.raises(ConfigurationError, match=r"num_steps=30 but no role .*num_steps=0"):
        bind("smoke", flags=flags)


@pytest.mark.parametrize(
    "flags",
    [("EvalConfig.every_steps = 4",), ("EvalConfig.every_steps = 0",), ("EvalConfig.suite = ''",)],
)
def test_the_best_of_what_is_not_evaluated_is_refused(flags: tuple[str, ...]) -> None:
    keep = "TrainConfig.keep_best_checkpoints = 2"
    assert bind("smoke", flags=(keep, "EvalConfig.every_steps = 5")).keep_best_checkpoints == 2
    with pytest.raises(ConfigurationError, match=r"=2 needs .* divisor of .*save_every_steps=10"):
        bind("smoke", flags=(keep, *flags))
