"""The problem record that every data set is turned into (method document, section 1.3)."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Problem:
    """One programming problem with a reference solution.

    Attributes:
      question_id: unique within a data set; the Mistake Book's key.
      entry_point: name of the function that tests call.
      question: what the coder is shown (signature and docstring, or prose with the signature).
      description: the natural-language part alone, what the tester is shown as the question.
      signature: `def name(args):` line, shown to the tester in black-box mode; may be empty.
      reference: complete, self-contained reference solution (imports included).
      golden_tests: asserts `f(args) == value`, one per item; used only by the golden baseline
        and by the embedded hold-out evaluation.
      source: name of the data set.
      split: "train" or "test".
    """

    question_id: str
    entry_point: str
    question: str
    description: str
    reference: str
    signature: str = ""
    golden_tests: tuple[str, ...] = ()
    source: str = ""
    split: Literal["train", "test"] = "train"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"golden_tests": list(self.golden_tests)}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Problem":
        return cls(**{**row, "golden_tests": tuple(row.get("golden_tests", ()))})
