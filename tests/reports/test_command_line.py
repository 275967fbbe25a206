import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_ppo.arguments import number_list
from parallel_ppo.exits import InputError
from tests.reports.run_copies import copy_run

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("compare_results.py", "plot_results.py", "benchmarks/scaling.py", "tools/suite.py")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run a script as `python SCRIPT ARGUMENTS` would, in this process: importing matplotlib costs a second
    each time."""

    def run(script, *arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_names_the_command(command, call):
    code, output, _ = call(command, "--help")
    assert code == 0
    assert f"python {command}" in output or f"python {ROOT / command}" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare_results.py"], "no sequential run under runs/"),
        (
            ["compare_results.py", "--sequential", "nowhere", "--parallel", "nowhere"],
            "no run directory nowhere",
        ),
        (["compare_results.py", "--run", "label"], "expected LABEL=DIR"),
        (["compare_results.py", "--run", "a=RUN"], "a comparison needs two"),
        (
            ["compare_results.py", "--run", "a=RUN", "--run", "b=RUN", "--output-dir", "RUN/config.yaml"],
            "is not a directory",
        ),
        (["compare_results.py", "--paralel", "x"], "--paralel: no such flag; did you mean --parallel?"),
        (["plot_results.py", "nowhere"], "no run directory nowhere"),
        (["plot_results.py", "--log-file", "nowhere.jsonl"], "no nowhere.jsonl"),
        (["benchmarks/scaling.py", "--world-sizes", "1,two"], "expected whole numbers"),
        (["benchmarks/scaling.py", "--world-sizes", "0,1"], "from 1 on"),
        (["benchmarks/scaling.py", "--set", "training.batch_size=3"], "training.batch_size"),
        (["benchmarks/scaling.py", "--warmup-iters", "12"], "--warmup-iters 12"),
        (["tools/suite.py"], "--games: is missing"),
        (
            ["tools/suite.py", "--games", "coinrun", "--duration", "1", "--total-timesteps", "1e3"],
            "each run has one budget",
        ),
        (["tools/suite.py", "--resume", "nowhere"], "nowhere"),
        (["tools/suite.py", "--games", "coinrun", "--duration", "1", "--output-dir", "RUN"], "is not empty"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, words, call, tmp_path):
    run = copy_run(tmp_path / "run", iterations=2)
    script, *rest = [argument.replace("RUN", str(run)) for argument in arguments]
    code, _, errors = call(script, *rest)
    assert code == 2, errors
    assert words in errors
    assert len(errors.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"], "nothing was written"


def test_numbers_by_commas():
    assert number_list("1,2,4", flag="--x") == [1, 2, 4]
    with pytest.raises(InputError, match="--x 1,,2: expected whole numbers"):
        number_list("1,,2", flag="--x")


def test_reports_import_no_training_code():
    """Loading every module of the reports must not load torch, an environment or the trainers."""
    code = (
        "import sys, pkgutil, importlib, parallel_ppo.reports as reports\n"
        "for module in pkgutil.iter_modules(reports.__path__):\n"
        "    importlib.import_module(f'parallel_ppo.reports.{module.name}')\n"
        "print([name for name in ('torch', 'procgen', 'gymnasium', 'tensorboard') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout.strip() == "[]", result.stderr
