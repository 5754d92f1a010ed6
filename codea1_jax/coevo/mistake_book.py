"""The Mistake Book: per question, the tests that codes have failed, to replay on later codes.

Code-A1 (arXiv 2603.15611), section 3.3 and appendix A.3. Two update rules:

* "per_step": for each test that had a verdict in this step, +1 if any valid code failed it (newly
  written or replayed), -1 if all judged valid codes passed it.
* "official": +1 for each failure of a newly written test, -1 for each replayed pass; passes are
  counted first, and a replayed failure adds nothing.

Under both a failed test enters with frequency 1, and a test whose frequency reaches 0 leaves. Tests
are keyed by what they call, not by their text, and keep the reference's answer. State only: reading
and writing files is the checkpoint's business.
"""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from codea1_jax.coevo.config import CoEvolutionConfig
from codea1_jax.coevo.testcase import InvalidTestError, StoredTest, make_test
from codea1_jax.coevo.verdicts import ProblemVerdicts
from codea1_jax.sandbox.verdict import Verdict
from sandbox_service import codec

_FORMAT = 1


@dataclasses.dataclass
class Entry:
    """A remembered test and how often it was failed, less how often it was passed."""

    test: StoredTest
    frequency: int


class MistakeBook:
    """Remembered tests of all questions.

    Attributes:
      num_added, num_removed, num_evicted: tests that entered, left at frequency 0 or as no longer
        valid, and were pushed out by the cap, since the book was made.
    """

    def __init__(self, rule: Literal["per_step", "official"] = "per_step", cap: int = 64):
        """`cap` is the most tests remembered per question; 0 for no limit."""
        if rule not in ("per_step", "official"):
            raise ValueError(f"book_rule={rule!r} is not one of 'per_step', 'official'")
        self._rule = rule
        self._cap = cap
        self._questions: dict[str, dict[bytes, Entry]] = {}
        self.num_added = 0
        self.num_removed = 0
        self.num_evicted = 0

    @classmethod
    def from_config(cls, config: CoEvolutionConfig) -> "MistakeBook":
        return cls(config.book_rule, config.book_cap)

    def __len__(self) -> int:
        """Number of remembered tests."""
        return sum(len(entries) for entries in self._questions.values())

    @property
    def num_questions(self) -> int:
        return len(self._questions)

    def frequencies(self, question_id: str) -> dict[bytes, int]:
        """Frequency by test key, in order of entry."""
        entries = self._questions.get(question_id, {})
        return {key: entry.frequency for key, entry in entries.items()}

    def retrieve(
        self,
        question_id: str,
        num_tests: int,
        method: Literal["top", "sampled"] = "top",
        rng: np.random.Generator | None = None,
    ) -> tuple[StoredTest, ...]:
        """Up to `num_tests` remembered tests of a question.

        "top": the most frequent first, older ones first among equals. "sampled": drawn from `rng`
        without replacement, with probability proportional to frequency.
        """
        entries = list(self._questions.get(question_id, {}).values())
        if method == "top":
            entries.sort(key=lambda entry: -entry.frequency)  # stable
        elif method == "sampled":
            if rng is None:
                raise ValueError("retrieval='sampled' needs a random generator")
            weights = np.array([entry.frequency for entry in entries], np.float64)
            size = min(num_tests, len(entries))
            if size:
                drawn = rng.choice(len(entries), size, replace=False, p=weights / weights.sum())
                entries = [entries[i] for i in drawn]
        else:
            raise ValueError(f"retrieval={method!r} is not one of 'top', 'sampled'")
        return tuple(entry.test for entry in entries[:num_tests])

    def update(self, verdicts: ProblemVerdicts) -> None:
        """Applies the book's rule to one question's verdicts; invalid codes change nothing."""
        valid = [m for m, code in enumerate(verdicts.codes) if code.is_valid]
        if self._rule == "official":
            passed = [
                stored.key
                for m in valid
                for stored in verdicts.history
                if verdicts.codes[m].judgements[stored.key].verdict is Verdict.PASS
            ]
            new_fails = [
                stored
                for m in valid
                for suite in (s for group in verdicts.suites for s in group if m in s.targets)
                for stored in suite.attacking
                if verdicts.codes[m].judgements[stored.key].verdict is Verdict.FAIL
            ]
            self.update_official(verdicts.question_id, new_fails, passed)
            return
        tests = {stored.key: stored for stored in verdicts.history}
        for suite in (s for group in verdicts.suites for s in group):
            for stored in suite.attacking:
                tests.setdefault(stored.key, stored)
        outcomes: dict[bytes, list[Verdict]] = {key: [] for key in tests}
        for m in valid:
            for key, judgement in verdicts.codes[m].judgements.items():
                if judgement.verdict is not Verdict.UNKNOWN:
                    outcomes[key].append(judgement.verdict)
        self.update_per_step(
            verdicts.question_id, [(tests[key], found) for key, found in outcomes.items()]
        )

    def update_official(
        self, question_id: str, new_fails: Iterable[StoredTest], passed: Iterable[bytes]
    ) -> None:
        """-1 per replayed pass, then +1 per newly written failure; duplicates count each."""
        entries = self._questions.setdefault(question_id, {})
        for key in passed:
            self._add(entries, key, -1)
        for stored in new_fails:
            self._insert_or_increment(entries, stored)
        self._close(question_id, entries)

    def update_per_step(
        self, question_id: str, outcomes: Iterable[tuple[StoredTest, Sequence[Verdict]]]
    ) -> None:
        """Each test once: +1 if some verdict is FAIL, -1 if there are verdicts and all are PASS."""
        entries = self._questions.setdefault(question_id, {})
        for stored, verdicts in outcomes:
            if Verdict.FAIL in verdicts:
                self._insert_or_increment(entries, stored)
            elif Verdict.PASS in verdicts:
                self._add(entries, stored.key, -1)
        self._close(question_id, entries)

    def remove_invalid(self, is_valid: Callable[[str, StoredTest], bool | None]) -> int:
        """Drops tests for which `is_valid(question_id, test)` is False (None keeps them).

        For use after loading: the question set or a reference may have changed. Returns how many
        tests were dropped.
        """
        before = self.num_removed
        for question_id in list(self._questions):
            entries = self._questions[question_id]
            for key in list(entries):
                if is_valid(question_id, entries[key].test) is False:
                    del entries[key]
                    self.num_removed += 1
            self._close(question_id, entries)
        return self.num_removed - before

    def stored_tests(self) -> dict[str, tuple[StoredTest, ...]]:
        """All remembered tests by question, in order of entry."""
        return {
            question_id: tuple(entry.test for entry in entries.values())
            for question_id, entries in self._questions.items()
        }

    def _insert_or_increment(self, entries: dict[bytes, Entry], stored: StoredTest) -> None:
        if stored.key in entries:
            self._add(entries, stored.key, 1)
        else:
            entries[stored.key] = Entry(stored, 1)
            self.num_added += 1

    def _add(self, entries: dict[bytes, Entry], key: bytes, change: int) -> None:
        entry = entries.get(key)
        if entry is None:
            return
        entry.frequency += change
        if entry.frequency <= 0:
            del entries[key]
            self.num_removed += 1

    def _close(self, question_id: str, entries: dict[bytes, Entry]) -> None:
        """Applies the cap and forgets questions without tests."""
        excess = len(entries) - self._cap if self._cap else 0
        if excess > 0:
            weakest = sorted(entries, key=lambda key: entries[key].frequency)  # oldest first
            for key in weakest[:excess]:
                del entries[key]
            self.num_evicted += excess
        if not entries:
            self._questions.pop(question_id, None)

    def to_state(self) -> dict[str, Any]:
        """JSON-serialisable state with a checksum."""
        content = {
            "format": _FORMAT,
            "counters": [self.num_added, self.num_removed, self.num_evicted],
            "questions": {
                question_id: [_entry_state(entry) for entry in entries.values()]
                for question_id, entries in sorted(self._questions.items())
            },
        }
        return content | {"checksum": _checksum(content)}

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        rule: Literal["per_step", "official"] = "per_step",
        cap: int = 64,
    ) -> "MistakeBook":
        """The book that `to_state` described, under the given rule and cap.

        Raises:
          ValueError: the state is damaged or of another format.
        """
        content = {key: value for key, value in state.items() if key != "checksum"}
        if content.get("format") != _FORMAT:
            raise ValueError(
                f"Mistake Book format {content.get('format')!r} is not {_FORMAT}; "
                "it was written by another version"
            )
        if state.get("checksum") != _checksum(content):
            raise ValueError("Mistake Book checksum does not match; restore an earlier checkpoint")
        book = cls(rule, cap)
        book.num_added, book.num_removed, book.num_evicted = content["counters"]
        for question_id, rows in content["questions"].items():
            entries = [_entry_from_state(question_id, row) for row in rows]
            book._questions[question_id] = {entry.test.key: entry for entry in entries}
        return book


def _entry_state(entry: Entry) -> list[Any]:
    test = entry.test.test
    call = codec.encode([test.entry_point, test.args, dict(test.kwargs)])
    expected = codec.encode(entry.test.expected)
    return [_to_text(call), _to_text(expected), entry.frequency, entry.test.reference_cpu_s]


def _entry_from_state(question_id: str, row: Sequence[Any]) -> Entry:
    try:
        entry_point, args, kwargs = codec.decode(_from_text(row[0]))
        test = make_test(entry_point, args, kwargs)
        expected = codec.decode(_from_text(row[1]))
    except (codec.CodecError, InvalidTestError, ValueError) as error:
        raise ValueError(f"Mistake Book entry of {question_id} is damaged: {error}") from None
    return Entry(StoredTest(test, expected, float(row[3])), int(row[2]))


def _to_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_text(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
