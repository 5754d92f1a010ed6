"""The `codea1` command.

codea1 train  --gin_file=gin/runs/smoke.gin --run_dir=runs/smoke [--gin.NAME=VALUE ...]
codea1 sft    --gin_file=gin/runs/sft_tiny.gin --run_dir=runs/sft
codea1 eval   --suite=humaneval_plus --samples=FILE.jsonl --output=OUT.json
codea1 export --run_dir=runs/smoke --role=coder --output=DIR
codea1 report runs/smoke [OTHER_RUN]
codea1 compare runs/a runs/b runs/c --output=DIR
codea1 rollout --checkpoint=DIR --prompts=FILE.jsonl --output=OUT.jsonl --group=8
codea1 plan   --gin_file=gin/runs/a1_1_5b.gin --topology=v6e-8
codea1 bench  learner --checkpoint=DIR --sequences=8 --length=256
codea1 bench  step    --gin_file=gin/runs/smoke.gin
codea1 bench  sampler --checkpoint=DIR --prompts=FILE.jsonl --group=4 --max_new_tokens=64
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand; errors a user can mend are one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="codea1", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="adversarial training of coder and tester")
    train.add_argument(
        "--distributed", action="store_true", help="this is one of several processes of a run"
    )
    _add_run(train)
    _add_run(commands.add_parser("sft", help="supervised fine-tuning"))
    _add_eval(commands.add_parser("eval", help="HumanEval+ and MBPP+ of a model or of samples"))
    _add_export(commands.add_parser("export", help="a role of a run as a Hugging Face directory"))
    _add_report(commands.add_parser("report", help="one or two runs as one static HTML file"))
    _add_compare(commands.add_parser("compare", help="a table and a plot of runs, over seeds"))
    _add_rollout(commands.add_parser("rollout", help="samples of a checkpoint for given prompts"))
    _add_plan(commands.add_parser("plan", help="memory and time on a TPU slice, without a TPU"))
    _add_bench(commands.add_parser("bench", help="speed of a part; ends with one JSON line"))
    options, unknown = parser.parse_known_args(arguments)
    if unknown and not hasattr(options, "gin_file"):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    handler = {
        "train": _train,
        "sft": _sft,
        "eval": _eval,
        "export": _export,
        "report": _report,
        "compare": _compare,
        "rollout": _rollout,
        "plan": _plan,
        "bench": _bench,
    }[options.command]
    from codea1_jax.errors import UserError

    try:
        return handler(options, unknown)
    except UserError as error:
        print(f"codea1 {options.command}: {error}", file=sys.stderr)
        return 2


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gin_file", action="append", required=True, help="may be repeated")
    parser.add_argument("--run_dir", type=pathlib.Path, help="required unless --dry_run")
    parser.add_argument(
        "--dry_run", action="store_true", help="check, print the bound configuration, exit"
    )


def _add_eval(parser: argparse.ArgumentParser) -> None:
    from codea1_jax.eval import command

    command.add_arguments(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run_dir", type=pathlib.Path, required=True)
    parser.add_argument("--role", choices=("coder", "tester"), required=True)
    parser.add_argument(
        "--step",
        type=lambda text: text if text == "best" else int(text),
        metavar="{NUMBER,best}",
        help="which checkpoint; best: by hold-out pass rate; default: the latest",
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=pathlib.Path, nargs="+", help="one run folder, or two")
    parser.add_argument("--output", type=pathlib.Path, help="default: report.html in the folder")
    parser.add_argument(
        "--max_mb", type=float, default=64.0, help="megabytes of rollouts in the file (default 64)"
    )


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=pathlib.Path, nargs="+", help="run folders")
    parser.add_argument("--output", type=pathlib.Path, help="folder for compare.md, .csv and .png")


def _add_rollout(parser: argparse.ArgumentParser) -> None:
    from codea1_jax.rollout import arguments

    arguments.add_rollout(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    from codea1_jax.plan import arguments

    arguments.add_plan(parser)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from codea1_jax.bench import arguments

    parts = parser.add_subparsers(dest="part", required=True)
    arguments.add_learner(parts.add_parser("learner", help="optimizer steps on random tokens"))
    arguments.add_step(parts.add_parser("step", help="whole steps of a run file, by phase"))
    arguments.add_sampler(parts.add_parser("sampler", help="rollout engine on given prompts"))
    arguments.add_curves(parts.add_parser("curves", help="sampler against slots, context, group"))


def _bench(options: argparse.Namespace, unknown: Sequence[str]) -> int:
    if options.part == "step":
        from codea1_jax.bench import step

        return step.run(options, unknown)
    if options.part == "learner":
        from codea1_jax.bench import learner

        return learner.run(options)
    if options.part == "curves":
        from codea1_jax.bench import curves

        return curves.run(options)
    from codea1_jax.bench import sampler

    return sampler.run(options)


def _plan(options: argparse.Namespace, flags: Sequence[str]) -> int:
    from codea1_jax.plan import command

    return command.run(options, flags)


def _rollout(options: argparse.Namespace, _: Sequence[str]) -> int:
    from codea1_jax.rollout import command

    return command.run(options)


def _build(root: type, options: argparse.Namespace, flags: Sequence[str]):
    from codea1_jax import gin_io

    config = gin_io.build(root, options.gin_file, gin_io.flag_bindings(flags))
    if options.run_dir is None and not options.dry_run:
        raise gin_io.ConfigurationError("--run_dir is missing: the folder for everything written")
    return config


def _train(options: argparse.Namespace, flags: Sequence[str]) -> int:
    from codea1_jax import config, distributed, gin_io, train

    if options.distributed:
        distributed.initialize()
    run = _build(config.TrainConfig, options, flags)
    train.check(run)
    if options.dry_run:
        print(gin_io.bound_config())
        return 0
    return train.train(run, options.run_dir, gin_io.bound_config())


def _sft(options: argparse.Namespace, flags: Sequence[str]) -> int:
    from codea1_jax import gin_io, sft

    run = _build(sft.SftConfig, options, flags)
    if options.dry_run:
        print(gin_io.bound_config())
        return 0
    sft.run_sft(run, options.run_dir)
    return 0


def _eval(options: argparse.Namespace, _: Sequence[str]) -> int:
    from codea1_jax.eval import command

    return command.run(options)


def _export(options: argparse.Namespace, _: Sequence[str]) -> int:
    from codea1_jax.export import export_role

    export_role(options.run_dir, options.role, options.step, options.output, options.dtype)
    return 0


def _report(options: argparse.Namespace, _: Sequence[str]) -> int:
    from codea1_jax.obs.report import default_output, write_report

    output = options.output or default_output(options.run_dir)
    write_report(options.run_dir, output, options.max_mb)
    print(f"wrote {output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    return 0


def _compare(options: argparse.Namespace, _: Sequence[str]) -> int:
    from codea1_jax.obs.compare import run_compare

    run_compare(options.run_dir, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
