"""A typo in a run file or flag must stop a run before anything expensive starts, in one line."""

import dataclasses

import gin
import pytest

from codea1_jax.gin_io import ConfigurationError, bound_config, build, flag_bindings


@dataclasses.dataclass(frozen=True)
class Engine:
    power: int
    name: str = "diesel"

    def __post_init__(self):
        if self.power < 0:
            raise ValueError(f"power={self.power} must not be negative")


gin.external_configurable(Engine, "Engine")


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.gin"
    path.write_text("POWER = 3\nEngine.power = %POWER\n")
    return str(path)


def test_flags_override_the_file(run_file):
    assert build(Engine, [run_file], flag_bindings(["--gin.POWER=5"])).power == 5


def test_the_bound_configuration_parses_to_itself(run_file, tmp_path):
    first = build(Engine, [run_file], flag_bindings(["--gin.Engine.name='x'"]))
    copy = tmp_path / "copy.gin"
    copy.write_text(bound_config())
    assert build(Engine, [str(copy)]) == first


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--gin.POWR=5", ["POWR", "did you mean POWER"]),
        ("--gin.Engine.powr=5", ["Engine", "powr"]),
        ("--gin.Engin.power=5", ["Engin"]),
        ("--gin.POWER=%OTHER", ["OTHER", "used by", "--gin.OTHER=VALUE"]),
        ("--gin.POWER=%gin.REQUIRED", ["POWER", "no value"]),
        ("--gin.POWER=-1", ["Engine", "power=-1"]),
        ("--gin.Engine.name=petrol", ["petrol", "quotes"]),
        ("--gin.Engine.name='petrol", ["Engine.name", "unterminated"]),
    ],
)
def test_every_mistake_names_its_key(run_file, flag, words):
    with pytest.raises(ConfigurationError) as caught:
        build(Engine, [run_file], flag_bindings([flag]))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flag_without_the_prefix_is_explained():
    with pytest.raises(ConfigurationError, match=r"--gin\.NAME=VALUE"):
        flag_bindings(["--power=5"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.gin"):
        build(Engine, [str(tmp_path / "nowhere.gin")])
