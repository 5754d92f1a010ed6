"""MBPP rows to problems (google-research `mbpp.jsonl`, data CC BY 4.0).

Row schema: text, code, task_id, test_list, test_setup_code, challenge_test_list; some rows have
Windows line ends. The entry point is not given: it is the function of the solution that the tests
call first. 378 of the 974 tasks are MBPP+, a validation set; leave them out of training.
"""

import ast
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from codea1_jax.data import python_text
from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem
from codea1_jax.data.rows import field

URL = "https://raw.githubusercontent.com/google-research/google-research/master/mbpp/mbpp.jsonl"
FILE_NAMES = ("mbpp.jsonl",)
OFFICIAL_TEST = range(11, 511)

# Task numbers of MBPP+ v0.2.0 (EvalPlus, Apache-2.0).
_MBPP_PLUS = """
2 3 4 6 7 8 9 11 12 14 16 17 18 19 20 56 57 58 59 61 62 63 64 65 66 67 68 69 70 71 72 74 75 77 79
80 82 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 108 109 111 113
116 118 119 120 123 124 125 126 127 128 129 130 131 132 133 135 137 138 139 140 141 142 145 160
161 162 165 166 167 168 170 171 172 222 223 224 226 227 230 232 233 234 235 237 238 239 240 242
244 245 247 250 251 252 253 255 256 257 259 260 261 262 264 265 266 267 268 269 270 271 272 273
274 276 277 278 279 280 281 282 283 284 285 286 287 290 292 293 294 296 297 299 300 301 305 306
308 309 310 311 312 388 389 390 391 392 394 395 397 398 404 405 406 409 410 412 413 414 415 418
419 420 421 422 424 425 426 427 428 429 430 432 433 435 436 437 439 440 441 445 446 447 448 450
451 453 454 455 456 457 458 459 460 462 463 465 468 470 471 472 473 474 475 476 477 478 479 554
555 556 557 558 559 560 562 563 564 565 566 567 568 569 572 573 576 577 578 579 580 581 583 585
586 587 588 589 590 591 592 593 594 596 597 598 599 600 602 603 604 605 606 607 608 610 611 612
614 615 616 618 619 620 622 623 624 626 628 629 630 631 632 633 635 637 638 639 641 643 644 720
721 722 723 724 725 726 728 730 731 732 733 734 735 736 737 739 740 741 742 743 744 745 748 749
750 751 752 753 754 755 757 758 759 760 762 763 764 765 766 767 769 770 771 772 773 775 777 778
780 781 782 784 785 786 787 788 790 791 792 793 794 796 797 798 799 800 801 803 804 805 806 807
808 809
"""
MBPP_PLUS_IDS = frozenset(int(word) for word in _MBPP_PLUS.split())


def problems(
    rows: Iterable[dict[str, Any]],
    *,
    split: Literal["train", "test"] = "train",
    exclude_mbpp_plus: bool = True,
) -> Iterator[Problem]:
    """The problems of a split.

    With `exclude_mbpp_plus`, "train" is every task outside MBPP+ (596), because MBPP+ takes the
    place of the official test split; without it, "train" is everything but the official test split.
    "test" is always the official test split (tasks 11 to 510).
    """
    for row in rows:
        number = field(row, "task_id", int, "MBPP row")
        if split == "test":
            is_wanted = number in OFFICIAL_TEST
        elif exclude_mbpp_plus:
            is_wanted = number not in MBPP_PLUS_IDS
        else:
            is_wanted = number not in OFFICIAL_TEST
        if is_wanted:
            yield to_problem(row, split)


def to_problem(row: dict[str, Any], split: Literal["train", "test"] = "train") -> Problem:
    where = f"MBPP task {row.get('task_id', '?')}"
    text = python_text.normal_newlines(field(row, "text", str, where)).strip()
    code = python_text.normal_newlines(field(row, "code", str, where))
    setup = python_text.normal_newlines(row.get("test_setup_code") or "").strip()
    tests = [python_text.normal_newlines(t).strip() for t in field(row, "test_list", list, where)]
    reference = f"{setup}\n\n{code}" if setup else code
    entry_point = find_entry_point(code, tests, where)
    function = python_text.find_function(code, entry_point)
    assert function is not None  # find_entry_point looked among the top-level functions
    signature = python_text.signature_line(function)
    description = f"{text}\n{tests[0]}"
    challenge = [python_text.normal_newlines(t) for t in row.get("challenge_test_list") or []]
    return Problem(
        question_id=f"Mbpp/{row['task_id']}",
        entry_point=entry_point,
        question=docstring_question(signature, description),
        description=description,
        signature=signature,
        reference=reference,
        golden_tests=tuple(python_text.plain_asserts("\n".join([*tests, *challenge]), entry_point)),
        source="mbpp",
        split=split,
    )


def docstring_question(signature: str, description: str) -> str:
    """A signature and its text as a docstring, the form of a completion task."""
    quotes = "'''" if '"""' in description else '"""'
    prefix = "r" if "\\" in description else ""
    body = textwrap.indent(f"{prefix}{quotes}\n{description}\n{quotes}", "    ")
    return f"{signature}\n{body}\n"


def find_entry_point(code: str, tests: list[str], where: str) -> str:
    """The top-level function of the solution that the tests call most, the first on a tie."""
    tree = python_text.parse(code)
    defined = (
        {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} if tree else set()
    )
    calls = [name for test in tests for name in python_text.called_functions(test, defined)]
    if not calls:
        raise DataError(f"{where}: no test calls a function that the solution defines")
    return max(dict.fromkeys(calls), key=calls.count)
