"""The one parser: numbers as people write them, and one line for whatever is wrong."""

from pathlib import Path

import pytest

from parallel_ppo.arguments import (
    Parser,
    Refused,
    guarded,
    hours,
    named_run,
    next_free,
    number_list,
    whole_number,
    writable_file,
)
from parallel_ppo.exits import InputError, StorageError


def parser() -> Parser:
    parser = Parser(description="Tries.", examples=("try.py --size 3",))
    parser.add_argument("--size", type=whole_number)
    parser.add_argument("--kind", choices=["small", "large"])
    parser.add_argument("--name", required=True)
    return parser


@pytest.mark.parametrize(
    ("text", "value"), [("128", 128), ("1e6", 1_000_000), ("1_000", 1000), ("2.0", 2), ("-3", -3)]
)
def test_whole_numbers(text: str, value: int) -> None:
    assert whole_number(text) == value


@pytest.mark.parametrize("text", ["1.5", "many", "", "1e400", "nan", "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(Refused, match="expected a whole number such as 128 or 1e6") as caught:
        whole_number(text)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("text", "value"), [("1.5", 1.5), ("90s", 0.025), ("5m", 5 / 60), ("1.5h", 1.5), ("1h30m", 1.5), ("1e-3",
    1e-3)]
)  # fmt: skip
def test_times(text: str, value: float) -> None:
    assert hours(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["5 minutes", "5x", "m", "1h30", "1..5h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Refused, match=r"expected hours such as 1.5, or a time such as 90s, 5m"):
        hours(text)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--size", "x", "--name", "a"], "--size x: expected a whole number such as 128 or 1e6"),
        (["--siez", "3"], "--siez: no such flag; did you mean --size?"),
        (["--siez=3"], "--siez: no such flag; did you mean --size?"),
        (["--entirely-different"], "--entirely-different: no such flag; see --help"),
        (["--size", "3"], "--name: missing; see --help"),
        (["--name"], "--name: expected a value"),
        (["--name", "a", "b"], "b: not expected here; see --help"),
    ],
)
def test_errors_name_the_flag(words: list[str], line: str) -> None:
    with pytest.raises(InputError) as caught:
        parser().parse_args(words)
    assert str(caught.value) == line


def test_a_choice_and_what_follows_two_dashes() -> None:
    with pytest.raises(InputError, match=r"--kind huge: expected one of .*small.*large"):
        parser().parse_args(["--kind", "huge"])
    rest = Parser(description="Tries.", examples=("try.py",))
    rest.add_argument("rest", nargs="*")
    assert rest.parse_args(["--", "--anything"]).rest == ["--anything"]


def test_a_run_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/parallel-1").mkdir(parents=True)
    assert named_run("parallel-1") == named_run("runs/parallel-1") == Path("runs/parallel-1")
    assert named_run("parallel-2") == Path("parallel-2")
    assert next_free("runs/parallel-{}") == Path("runs/parallel-2")


def test_every_ending_is_one_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    def end(problem: BaseException) -> int:
        raise problem

    assert guarded(end, InputError("--x 1: expected 2")) == 2
    assert guarded(end, StorageError("full")) == 5
    assert guarded(end, KeyboardInterrupt()) == 130
    assert guarded(end, PermissionError(13, "Permission denied", "/a")) == 5
    assert guarded(lambda: Path("x" * 300).exists()) == 2
    assert guarded(end, InputError("two\nlines\x1b")) == 2
    assert guarded(end, OSError("ffmpeg failed\nwith a long log")) == 5
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "error: --x 1: expected 2",
        "error: full",
        "interrupted",
        "error: /a: Permission denied",
    ]
    assert lines[4].endswith("File name too long")
    assert lines[5:] == ["error: two lines\\x1b", "error: ffmpeg failed with a long log"]


def test_a_file_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, problem in (
        (Path("/proc/a.json"), "cannot be written"),
        (tmp_path / "file" / "a.json", "cannot be written"),
        (tmp_path / "a.txt", r"expected a name that ends in \.json"),
    ):
        with pytest.raises(InputError, match=f"^--output {path}: {problem}"):
            writable_file("--output", path, (".json",))
    assert writable_file("--output", tmp_path / "new" / "a.json", (".json",)).parent.is_dir()
    assert not list((tmp_path / "new").iterdir())


def test_numbers_by_commas() -> None:
    assert number_list("1,2,4", flag="--x") == [1, 2, 4]
    with pytest.raises(InputError, match="--x 1,,2: expected whole numbers"):
        number_list("1,,2", flag="--x")
