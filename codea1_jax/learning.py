"""One role's learning in one step: advantages in, an updated state and metrics out."""

from collections.abc import Sequence

import numpy as np

from codea1_jax.rl.advantages import effective_mask, group_advantages, group_statistics
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch, mini_batches
from codea1_jax.roles import Role
from codea1_jax.rollout.types import Sample


def learn(
    role: Role,
    groups: Sequence[Sequence[Sample]],
    rewards: np.ndarray,
    mask: np.ndarray,
    training_step: int,
    num_minibatches: int,
) -> dict[str, float]:
    """Updates `role.state` by GRPO on groups of samples and returns metrics.

    Args:
      groups: samples of one prompt each, all groups of one size G.
      rewards, mask: [groups, G]; samples outside the mask (unknown verdicts) take no part.
      training_step: counts from 1.
    """
    advantages = group_advantages(rewards, mask)
    known = effective_mask(rewards, mask)
    rows = [
        TrainSample(sample.prompt, sample.tokens, float(advantages[g, i]), bool(known[g, i]))
        for g, group in enumerate(groups)
        for i, sample in enumerate(group)
    ]
    batch = build_batch(
        rows,
        length_buckets=role.config.learner.length_buckets,
        pad_id=role.tokenizer.pad_id,
    )
    old_logp, _ = role.learner.score(role.state.params, batch)
    batch = batch.replace(old_logp=old_logp)
    if role.reference is not None:
        batch = batch.replace(ref_logp=role.learner.score(role.reference, batch)[0])
    samples = [sample for group in groups for sample in group]
    metrics = mismatch(batch, samples) | group_statistics(rewards, mask)
    updates = []
    for part in mini_batches(batch, num_minibatches):
        role.state, update = role.learner.update(role.state, part, training_step)
        updates.append(update)
    role.policy_version = training_step
    names = sorted({name for update in updates for name in update})
    return metrics | {
        name: _combiner(name)([update[name] for update in updates if name in update])
        for name in names
    }


def _combiner(name: str):
    if name.endswith("_max"):
        return max
    if name in ("num_tokens", "num_rows", "num_micro_batches", "is_skipped"):
        return sum
    return lambda values: float(np.mean(values))


def mismatch(batch: TrainBatch, samples: Sequence[Sample]) -> dict[str, float]:
    """How far the sampler's log-probs are from the learner's, over the counted tokens.

    `kl` is the k3 estimate of KL(sampler || learner).
    """
    differences = []
    for row, sample in enumerate(samples):
        start = len(sample.prompt)
        stop = start + len(sample.tokens)
        counted = batch.response_mask[row, start:stop] > 0
        difference = batch.old_logp[row, start:stop] - sample.sampler_logp
        differences.append(difference[counted])
    gap = np.concatenate(differences) if differences else np.zeros(0)
    if gap.size == 0:
        return {"mismatch_mean": 0.0, "mismatch_max": 0.0, "mismatch_kl": 0.0}
    return {
        "mismatch_mean": float(np.abs(gap).mean()),
        "mismatch_max": float(np.abs(gap).max()),
        "mismatch_kl": float(np.mean(np.expm1(gap) - gap)),
    }
