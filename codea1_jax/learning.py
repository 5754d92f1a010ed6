"""One role's learning in one step: a batch with advantages and log-probs, then its updates.

The two halves are apart so that the loop can prepare every role before any role changes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from codea1_jax import offload
from codea1_jax.errors import UserError
from codea1_jax.rl.advantages import (
    effective_mask,
    group_advantages,
    group_statistics,
    overlong_penalty,
)
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch, mini_batches
from codea1_jax.rl.importance import importance_weights
from codea1_jax.roles import Role
from codea1_jax.rollout.types import Sample


class MismatchTooLarge(UserError):
    """Sampler and learner disagree more than `LossConfig.max_mismatch_kl` allows."""


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What a role learns in a step; nothing of the role has changed yet.

    Attributes:
      metrics: of rewards, advantages and the gap between sampler and learner.
    """

    role: Role
    batch: TrainBatch
    metrics: dict[str, float]


def prepare(
    role: Role,
    groups: Sequence[Sequence[Sample]],
    rewards: np.ndarray,
    mask: np.ndarray,
    is_kept: np.ndarray | None = None,
) -> Lesson:
    """Advantages, old and reference log-probs and importance weights of groups of samples.

    Args:
      groups: samples of one prompt each, all groups of one size G.
      rewards, mask: [groups, G]; samples outside the mask (unknown verdicts) take no part.
      is_kept: [groups]; False leaves a group out (a zero-variance filter). None keeps all.

    Raises:
      MismatchTooLarge: the KL between sampler and learner is above the configured limit.
    """
    loss = role.config.loss
    metrics = {}
    if loss.overlong_buffer:
        lengths = np.array([[len(sample.tokens) for sample in group] for group in groups])
        buffer = loss.overlong_buffer * loss.max_response_tokens
        penalty = overlong_penalty(lengths, loss.max_response_tokens, buffer)
        rewards = rewards + penalty
        metrics["overlong_share"] = float(np.mean(penalty < 0.0))
    advantages = group_advantages(rewards, mask, normalize_std=loss.normalize_std)
    is_trained = effective_mask(rewards, mask)
    if is_kept is not None:
        metrics["num_filtered_groups"] = float(np.sum(~is_kept))
        is_trained &= is_kept[:, None]
    rows = [
        TrainSample(
            sample.prompt,
            sample.tokens,
            float(advantages[g, i]),
            bool(is_trained[g, i]),
            sample.sampler_logp,
        )
        for g, group in enumerate(groups)
        for i, sample in enumerate(group)
    ]
    batch = build_batch(
        rows,
        length_buckets=role.config.learner.length_buckets,
        pad_id=role.tokenizer.pad_id,
    )
    batch = batch.replace(old_logp=role.learner.score(role.state.params, batch)[0])
    weights, mismatch = importance_weights(batch, loss)
    if loss.max_mismatch_kl and not mismatch["mismatch_kl"] <= loss.max_mismatch_kl:
        raise MismatchTooLarge(
            f"{role.name}: the KL between sampler and learner is {mismatch['mismatch_kl']:.2g}, "
            f"above LossConfig.max_mismatch_kl={loss.max_mismatch_kl:g}; nothing of this step was "
            "learnt: sample with SamplingParams.top_p=1 and top_k=0, set "
            "RoleConfig.compute_dtype='float32', or raise the limit"
        )
    batch = batch.replace(weights=weights)
    if role.reference is not None:
        with offload.on_device(role.reference) as reference:
            batch = batch.replace(ref_logp=role.learner.score(reference, batch)[0])
    return Lesson(role, batch, metrics | mismatch | group_statistics(rewards, mask))


def prepare_jointly(
    role: Role, parts: Sequence[tuple[int, Sequence[Sample], np.ndarray, np.ndarray]]
) -> Lesson:
    """The lesson of one set of weights that plays several roles: `prepare` on all their groups.

    Args:
      parts: (question, samples, rewards, mask) of each group, all of one size. They are put in
        order of questions, so that every mini-batch has groups of every role.
    """
    parts = sorted(parts, key=lambda part: part[0])
    return prepare(
        role,
        [samples for _, samples, _, _ in parts],
        np.stack([rewards for _, _, rewards, _ in parts]),
        np.stack([mask for _, _, _, mask in parts]),
    )


def update(lesson: Lesson, training_step: int, num_minibatches: int) -> dict[str, float]:
    """Updates the role's state on its lesson, in so many optimizer steps, and returns metrics.

    Args:
      training_step: counts from 1.
    """
    role = lesson.role
    updates = []
    for part in mini_batches(lesson.batch, num_minibatches):
        role.state, metrics = role.learner.update(role.state, part, training_step)
        updates.append(metrics)
    role.policy_version = training_step
    names = sorted({name for metrics in updates for name in metrics})
    return lesson.metrics | {
        name: _combiner(name)([metrics[name] for metrics in updates if name in metrics])
        for name in names
    }


def _combiner(name: str):
    if name.endswith("_max"):
        return max
    if name in ("num_tokens", "num_rows", "num_micro_batches", "is_skipped"):
        return sum
    return lambda values: float(np.mean(values))
