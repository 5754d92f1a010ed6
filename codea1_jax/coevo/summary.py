"""Numbers about one step's verdicts and rewards, for the metrics. Pure."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from codea1_jax.coevo.rewards import ProblemRewards
from codea1_jax.coevo.verdicts import ProblemVerdicts, StatementStatus, unknown_share
from codea1_jax.sandbox.verdict import Verdict


def step_summary(
    verdicts: Sequence[ProblemVerdicts], rewards: Sequence[ProblemRewards]
) -> dict[str, float]:
    """Means over what was rewarded; shares between 0 and 1; counts under `verdicts/`.

    `tester/valid_share`: statements that are executable, unique in their suite and right, of those
    looked at. `tester/exposing_share`: of these, the ones that the attacked code fails.
    """
    counts: Counter[str] = Counter()
    for problem in verdicts:
        counts.update(problem.counts())
    looked_at = sum(
        counts[f"statements/{status.value}"]
        for status in StatementStatus
        if status is not StatementStatus.NOT_EXECUTED
    )
    num_judged, num_exposing = _exposing(verdicts)
    num_codes = sum(counts[f"codes/{kind}"] for kind in ("valid", "invalid", "unknown"))
    values = {
        "coder/valid_share": _ratio(counts["codes/valid"], num_codes),
        "coder/truncated_share": _ratio(counts["codes/truncated"], num_codes),
        "tester/valid_share": _ratio(counts["statements/valid"], looked_at),
        "tester/exposing_share": _ratio(num_exposing, num_judged),
        "tester/statements_per_suite": _ratio(looked_at, counts["suites/total"]),
        "tester/truncated_share": _ratio(counts["suites/truncated"], counts["suites/total"]),
        "verdicts/unknown_share": unknown_share(verdicts),
    }
    for name, count in counts.items():
        if name.startswith(("statements/", "verdicts/")):
            values[f"verdicts/{name.replace('verdicts/', 'tests_').replace('/', '_')}"] = count
    values |= _reward_summary("coder/reward", [(r.coder, r.coder_mask) for r in rewards])
    values |= _reward_summary("tester/reward", [(r.tester, r.tester_mask) for r in rewards])
    for name in ("valid", "adversarial"):
        terms = [(getattr(r, name), r.tester_mask) for r in rewards]
        values[f"tester/reward/{name}"] = _reward_summary("", terms)["/mean"]
    for name in ("pass_new", "pass_hist"):
        terms = [(getattr(r, name), np.isfinite(getattr(r, name))) for r in rewards]
        if any(known.any() for _, known in terms):
            values[f"coder/reward/{name}"] = _reward_summary("", terms)["/mean"]
    return values


def _exposing(verdicts: Sequence[ProblemVerdicts]) -> tuple[int, int]:
    """(right tests judged on a valid code, those of them that the code failed)."""
    judged = exposing = 0
    for problem in verdicts:
        for suite in (suite for group in problem.suites for suite in group):
            for statement in suite.statements:
                if statement.status is not StatementStatus.VALID or statement.test is None:
                    continue
                for m in suite.targets:
                    judgement = problem.codes[m].judgements.get(statement.test.key)
                    if judgement is None or judgement.verdict is Verdict.UNKNOWN:
                        continue
                    judged += 1
                    exposing += judgement.verdict is Verdict.FAIL
    return judged, exposing


def _reward_summary(
    prefix: str, parts: Sequence[tuple[np.ndarray, np.ndarray]]
) -> dict[str, float]:
    known = np.concatenate([np.zeros(0)] + [values[mask] for values, mask in parts])
    if known.size == 0:
        return {f"{prefix}/mean": 0.0, f"{prefix}/std": 0.0}
    return {f"{prefix}/mean": float(known.mean()), f"{prefix}/std": float(known.std())}


def _ratio(part: float, whole: float) -> float:
    return float(part) / whole if whole else 0.0
