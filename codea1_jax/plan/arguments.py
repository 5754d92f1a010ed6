"""Flags of `codea1 plan`; apart from the code so that other commands do not import it."""

import argparse
import pathlib


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gin_file", action="append", required=True, help="may be repeated")
    parser.add_argument("--topology", required=True, help="a slice, e.g. v5p-8, v5e-16, v6e-64")
    parser.add_argument("--json", type=pathlib.Path, help="also write everything to this file")
