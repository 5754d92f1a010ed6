"""Wrong examples would teach the warm-started roles answers that the judge then punishes."""

import random

import pytest

from codea1_jax.coevo.extract import extract_code
from codea1_jax.coevo.prompts import coder_messages
from codea1_jax.data.embedded_problems import SolvedProblem, load, load_embedded, warm_up_set
from codea1_jax.data.mutations import KINDS, faults, mutants
from codea1_jax.data.record import Problem
from codea1_jax.data.sft_examples import ExampleMix, SftExamples, faulty_version, tokenize
from codea1_jax.data.tiny_tokenizer import TinyModelSizes, prompt_phrases, write_tiny_directory
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.tokenizer import ChatTokenizer


@pytest.fixture(scope="module")
def rows() -> list[SolvedProblem]:
    held = [problem for problem in load_embedded() if problem.split == "test"]
    return warm_up_set(240, seed=0, num_tests=12, held_out=held)


@pytest.fixture(scope="module")
def tokenizer(rows, tmp_path_factory) -> ChatTokenizer:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_directory(directory, rows, 768, TinyModelSizes())
    tokenizer = ChatTokenizer(directory)
    assert Qwen2Config.from_directory(directory).vocab_size == tokenizer.vocab_size
    return tokenizer


def test_examples_depend_only_on_seed_step_and_index(rows):
    mix = ExampleMix(wrong_share=0.5)
    one, other = SftExamples(rows, mix, seed=4), SftExamples(rows, mix, seed=4)
    later = [other[2, i] for i in reversed(range(20))]
    assert [one[2, i] for i in range(20)] == later[::-1]
    assert one[2, 0] != one[3, 0]
    assert one[2, 0] != SftExamples(rows, mix, seed=5)[2, 0]


def test_coder_examples_are_right_without_wrong_share(rows):
    examples = SftExamples(rows, ExampleMix(tester_share=0.0), seed=0)
    for i in range(100):
        row, program = _coder_example(rows, examples[1, i])
        assert program in row.solutions


def test_wrong_share_is_the_share_of_failing_programs(rows):
    examples = SftExamples(rows, ExampleMix(tester_share=0.0, wrong_share=0.5), seed=0)
    wrong = 0
    for i in range(300):
        row, program = _coder_example(rows, examples[1, i])
        wrong += program not in row.solutions
    assert 120 <= wrong <= 180


def test_faults_wait_for_their_step(rows):
    mix = ExampleMix(tester_share=0.0, wrong_share=1.0, wrong_after=3)
    examples = SftExamples(rows, mix, seed=0)
    for step, is_right in ((3, True), (4, False)):
        for i in range(20):
            row, program = _coder_example(rows, examples[step, i])
            assert (program in row.solutions) == is_right


def _coder_example(rows, example) -> tuple[SolvedProblem, str]:
    assert example.role == "coder"
    (row, *_) = [row for row in rows if coder_messages(row.problem) == example.messages]
    return row, extract_code(example.response, row.problem.entry_point).text


def test_wide_mix_asks_in_the_prompts_of_the_ablations(rows):
    """A tester that never saw the black-box prompt, or was never asked for bare calls, writes tests
    that nobody can use there."""
    mix = ExampleMix(tester_share=1.0, black_box_share=0.3, no_answer_share=0.3)
    examples = SftExamples(rows, mix, seed=0)
    plain = SftExamples(rows, ExampleMix(tester_share=1.0), seed=0)
    seen = {"black box": 0, "calls": 0, "ordinary": 0}
    for i in range(200):
        question = examples[1, i].messages[1]["content"]
        tests, asserts = examples[1, i].response.splitlines(), plain[1, i].response.splitlines()
        if "form 'function_name(parameters)'" in question:
            seen["calls"] += 1
            assert "Buggy Code:" in question
            for call, test in zip(tests[1:-1], asserts[1:-1], strict=True):
                assert test.startswith(f"assert {call} == ")
            continue
        assert tests == asserts
        if "Buggy Code:" in question:
            seen["ordinary"] += 1
            assert examples[1, i] == plain[1, i]
        else:
            seen["black box"] += 1
            assert "Function:\ndef " in question
    assert 40 <= seen["black box"] <= 80
    assert 40 <= seen["calls"] <= 80


def test_shares_beyond_all_conversations_are_refused():
    with pytest.raises(ValueError, match=r"black_box_share=0.6 and no_answer_share=0.5"):
        ExampleMix(black_box_share=0.6, no_answer_share=0.5)


def test_tester_examples_are_suites_of_right_tests(rows):
    examples = SftExamples(rows, ExampleMix(tester_share=1.0, num_tests=4), seed=0)
    known = {test for row in rows for test in row.problem.golden_tests}
    for i in range(100):
        lines = examples[1, i].response.splitlines()
        assert (lines[0], lines[-1]) == ("```python", "```")
        assert len(lines) - 2 == len(set(lines[1:-1])) == 4
        assert known.issuperset(lines[1:-1])
        assert examples[1, i].role == "tester"


def test_mix_refuses_what_cannot_be(rows):
    with pytest.raises(ValueError, match="wrong_share"):
        ExampleMix(wrong_share=1.5)
    with pytest.raises(ValueError, match="at least one problem"):
        SftExamples([], ExampleMix())
    bare = SolvedProblem(Problem("q", "f", "f", "f", "def f(x):\n    return x"), ("",))
    with pytest.raises(ValueError, match="tester_share"):
        SftExamples([bare], ExampleMix())


def test_program_without_a_place_for_a_fault_is_left_alone():
    row = SolvedProblem(Problem("q", "f", "f", "f", "def f(x):\n    return x"), ())
    assert faulty_version(row, row.problem.reference, 4.0, random.Random(0)) == (
        row.problem.reference
    )


@pytest.mark.parametrize(
    ("source", "kind", "wrong"),
    [
        ("def f(x):\n    return x >= 3", "boundary", "def f(x):\n    return x > 3"),
        ("def f(x):\n    return x < 3", "direction", "def f(x):\n    return x > 3"),
        ("def f(x):\n    return x + 3", "constant", "def f(x):\n    return x + 2"),
        ("def f(x):\n    return x + 3", "arithmetic", "def f(x):\n    return x - 3"),
        ("def f(a, b):\n    return a and b", "logic", "def f(a, b):\n    return a or b"),
        ("def f(a):\n    return 1 if a else 2", "branch", "def f(a):\n    return 2 if a else 1"),
        (
            "def f(a):\n    if a:\n        return 1\n    return 2",
            "branch",
            "def f(a):\n    return 2",
        ),
        (
            "def f(a):\n    return [n for n in a if n]",
            "branch",
            "def f(a):\n    return [n for n in a]",
        ),
        ("def f(a):\n    return max(a)", "call", "def f(a):\n    return min(a)"),
        ("def f(a):\n    return a.upper()", "branch", "def f(a):\n    return a"),
    ],
)
def test_faults(source, kind, wrong):
    assert kind in KINDS
    assert wrong in [fault.program() for fault in faults(source) if fault.kind == kind]


def test_mutants_parse_and_differ(rows):
    for row in rows[:48]:
        source = row.problem.reference
        made = mutants(source)
        assert made
        assert len({source, *made}) == len(made) + 1
        for program in made:
            load(program, row.problem.entry_point)


def test_tokenised_answer_decodes_to_itself_and_ends_the_turn(rows, tokenizer):
    examples = SftExamples(rows, ExampleMix(wrong_share=0.5), seed=0)
    for i in range(50):
        example = examples[1, i]
        tokenized = tokenize(example, tokenizer)
        answer = tokenized.tokens[tokenized.prompt_length :]
        assert tokenizer.decode(answer) == example.response
        assert answer[-1] in tokenizer.stop_token_ids
        assert not set(answer[:-1]) & set(tokenizer.stop_token_ids)
        assert list(tokenized.tokens[: tokenized.prompt_length]) == tokenizer.encode_chat(
            example.messages
        )


def test_conversations_are_short(rows, tokenizer):
    """The smoke run's budget rests on this: its buckets are 64, 96, ... tokens."""
    examples = SftExamples(rows, ExampleMix(), seed=0)
    lengths: dict[str, list[int]] = {"coder": [], "tester": []}
    for i in range(300):
        lengths[examples[1, i].role].append(len(tokenize(examples[1, i], tokenizer).tokens))
    assert max(lengths["coder"]) <= 96
    assert max(lengths["tester"]) <= 192


def test_digits_are_single_tokens_and_any_text_survives(tokenizer):
    for text in ("f(1234) == -56", "x = 'ä€\t' # 漢字\r\n", "[10, 2]", "return  9"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        for token in ids:
            assert sum(c.isdigit() for c in tokenizer.decode([token])) <= 1


def test_fixed_sentences_of_the_prompts_are_single_tokens(tokenizer):
    assert len(prompt_phrases()) >= 5
    for phrase in prompt_phrases():
        assert len(tokenizer.encode(phrase)) == 1
