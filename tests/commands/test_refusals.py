"""Wrong input of every command is one line and exit code 2, and nothing is written."""

import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import scaling
from parallel_ppo.arguments import guarded
from parallel_ppo.commands import main
from tests.conftest import small_settings
from tests.evaluation.weight_files import write_weights

LONG = "x" * 300
# RUN is a run directory, WEIGHTS a policy of CartPole-v1, mine.yaml a file with an unknown key.
REFUSED = [
    *((f"{name} --no-such-flag", "--no-such-flag: no such flag") for name in main.COMMANDS),
    ("train --num-workers 0", "--num-workers 0: expected a whole number from 1"),
    ("train --num-workers many", "--num-workers many: expected a whole number from 1"),
    ("train --env coinrum", "did you mean 'coinrun'?"),
    (f"train --env {LONG}-v1", "no environment is called"),
    ("train --num-envs 32 --n-steps 256 --batch-size 1000",
     "1000 does not divide 32 environments x 256 steps = 8192"),
    ("train --num-envs 65536 --n-steps 1024 --batch-size 65536 --output-dir new", "GB"),
    ("train --config nowhere.yaml", "nowhere.yaml: no such configuration file"),
    (f"train --config {LONG}", "File name too long"),
    ("train --config mine.yaml", "training.n_stepz: unknown key; did you mean 'n_steps'?"),
    ("train --learning-rate fast", "--learning-rate fast: expected a number such as"),
    ("train --n-stepz 5", "--n-stepz: no such flag; did you mean --n-steps?"),
    ("train --seed", "--seed: expected a value"),
    ("train runs/1", "runs/1: not expected here; see --help"),
    ("train --duration '5 minutes'",
     "--duration 5 minutes: expected hours such as 1.5, or a time such as 90s, 5m"),
    (f"train --set training.seed=0x{'f' * 5000}", "is too large"),
    ("train --set 'env.kwargs=&a [*a]'", "anchors or aliases"),
    ("train --set training.gama=0.9", "did you mean 'gamma'?"),
    ("train --set curiosity.hidden_size=256", "has no effect without curiosity.kind"),
    ("train --set curiosity.hidden_size=256", "did you mean 'hidden_sizes'?"),
    ("train --set gamma", "expected section.key=value"),
    ("train --resume nowhere", "--resume nowhere: no such directory"),
    ("train --resume .", "--resume .: holds no run"),
    ("train --policy transformer", "--policy: got 'transformer'"),
    ("train --env CartPole-v1 --policy impala", "'impala' cannot read the vectors of CartPole-v1; use mlp"),
    ("train --set training.learning_rate_schedule=linear --duration 1h",
     "needs training.schedule_steps or --total-timesteps"),
    ("train --set hardware.pinning=[4000]", "hardware.pinning"),
    ("train --set hardware.num_threads=3", "is for the sequential trainer"),
    ("train --set logging.trackers=[tensorbored]", "logging.trackers: got 'tensorbored'"),
    ("train --curiosity rdn", "--curiosity: got 'rdn'; expected none, rnd, icm, ngu"),
    ("train --curiosity rnd --algorithm impala", "rnd cannot be used with impala"),
    ("train --curiosity icm --set training.lag=1", "training.lag: icm needs samples"),
    ("train --curiosity ngu --set curiosity.ngu_memory=100000000 --output-dir new",
     "a smaller curiosity.ngu_memory"),
    ("train --recurrent rnn", "--recurrent: got 'rnn'; expected none, gru, lstm"),
    ("train --set recurrence.size=64", "recurrence.size: has no effect without --recurrent gru or lstm"),
    ("train --recurrent gru --set recurrence.size=100", "recurrence.size: got 100; input should be a multiple of 16"),
    ("train --recurrent gru --n-steps 256 --set recurrence.sequence_length=24",
     "recurrence.sequence_length: 24 does not divide 256 steps; nearest: 16"),
    ("train --recurrent lstm --num-envs 32 --n-steps 128 --batch-size 64",
     "16 samples, which are no whole sequences of 32 steps; use a multiple of 128"),
    ("train --recurrent lstm --set training.lane_samples=16", "cannot hold a sequence of 32 steps"),
    ("train --env CartPole-v1 --recurrent gru --init-from WEIGHTS",
     "has no cell.input_weight, which its network needs"),
    ("evaluate --checkpoint nowhere", "nowhere: no such file"),
    ("evaluate WEIGHTS --levels train,test", "has no levels"),
    ("evaluate WEIGHTS --env coinrum", "did you mean"),
    ("evaluate WEIGHTS --num-episodes 0", "--num-episodes 0: expected a whole number from 1 to 10000"),
    ("evaluate WEIGHTS --max-steps 1e30", "--max-steps 1e30: expected a whole number from 1 to 100000000"),
    ("play WEIGHTS --num-episodes 1e9", "--num-episodes 1e9: expected a whole number from 1 to 10000"),
    ("evaluate WEIGHTS --num-workers 0", "--num-workers 0: expected a whole number from 1 on, or auto"),
    ("evaluate WEIGHTS --seed -1", "--seed -1: expected a whole number from 0"),
    ("evaluate runs/another --checkpoint WEIGHTS", "the policy is given twice"),
    ("evaluate WEIGHTS --output result.txt", "ends in .json"),
    ("evaluate WEIGHTS --output /proc/x.json", "--output /proc/x.json: cannot be written"),
    ("export WEIGHTS --output mine.yaml/x.onnx", "x.onnx: cannot be written"),
    ("tune --output /proc/x.yaml", "--output /proc/x.yaml: cannot be written"),
    ("evaluate WEIGHTS --num-epsiodes 3", "did you mean --num-episodes?"),
    ("play WEIGHTS --grid 2", "--grid 2: expected columns x rows"),
    ("play WEIGHTS --grid 2x2 --num-episodes 6", "nearest that can: 8"),
    ("play WEIGHTS --output film.avi", "expected a name that ends in .mp4 or .gif"),
    ("play WEIGHTS --levels test", "has no levels"),
    ("plot nowhere", "no run directory nowhere"),
    ("plot --log-file nowhere.jsonl", "no nowhere.jsonl"),
    ("compare", "no sequential run under runs/"),
    ("compare --sequential nowhere --parallel nowhere", "no run directory nowhere"),
    ("compare --run label", "expected LABEL=DIR"),
    ("compare --run a=RUN", "a comparison needs two"),
    ("compare --run a=RUN --run a=RUN --run b=RUN", "is given twice for a"),
    ("compare --run a=RUN --run b=RUN --output-dir RUN/config.yaml", "is not a directory"),
    ("compare --paralel x", "--paralel: no such flag; did you mean --parallel?"),
    ("suite", "--games: is missing"),
    ("suite --games coinrun --duration 1 --total-timesteps 1e3", "each run has one budget"),
    ("suite --games 'a\x1bb' --duration 1", "--games a\\x1bb: expected names, by commas"),
    ("tune --num-workers 0,2", "--num-workers 0,2: expected numbers from 1 to 4096"),
    ("\x1b[2J", "error: \\x1b[2J: no such command"),
    ("suite --games coinrun --setting plain", "--setting plain: expected NAME=FLAGS"),
    ("suite --games coinrun --setting '=--seed 1'", "expected NAME=FLAGS"),
    ("suite --games coinrun --setting 'a b=--seed 1'", "expected NAME=FLAGS"),
    ('suite --games coinrun --setting "a=\'"', "expected flags as on a command line"),
    ("suite --resume nowhere", "nowhere"),
    ("suite --games coinrun --duration 1 --output-dir RUN", "is not empty"),
    ("doctor --plan --pinning 99999", "--pinning 99999"),
    ("doctor --plan --pinning 0-65535", "-65535, but this process may use"),
    ("doctor --plan --num-workers 1e12", "--num-workers 1e12: expected a whole number from 1 to 4096"),
    ("doctor --num-workers 2", "--num-workers: has no effect without --plan"),
    ("scaling --world-sizes 1,two", "expected whole numbers"),
    ("scaling --world-sizes 0,1", "from 1 on"),
    ("scaling --set training.batch_size=3", "training.batch_size"),
    ("scaling --warmup-iters 12", "--warmup-iters 12"),
    ("scaling --env-id CartPole-v1 --policy impala", "use mlp"),
]  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files and folders for the commands."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("{}")
    (folder / "run" / "metrics.jsonl").write_text('{"steps_global": 64}\n')
    write_weights(folder / "weights" / "a.safetensors", small_settings())
    (folder / "mine.yaml").write_text("training:\n  n_stepz: 5\n")
    return folder


@pytest.mark.parametrize(("line", "words"), REFUSED, ids=[line[:60] for line, _ in REFUSED])
def test_wrong_input_is_one_line_and_exit_code_2(
    line: str,
    words: str,
    given: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(given)
    monkeypatch.setattr("parallel_ppo.commands.train.leave", lambda code: None)
    before = sorted(given.rglob("*"))
    command, *flags = [
        word.replace("RUN", "run").replace("WEIGHTS", "weights/a.safetensors") for word in shlex.split(line)
    ]
    monkeypatch.setattr(sys, "argv", [command, *flags])
    code = guarded(scaling.main) if command == "scaling" else main.main([command, *flags])
    errors = capsys.readouterr().err
    assert code == 2 and errors.startswith("error: "), errors
    assert words in errors.replace("GiB", "GB") and errors.count("\n") == 1, errors
    assert sorted(given.rglob("*")) == before, "nothing was written"


@pytest.mark.parametrize("command", main.COMMANDS)
def test_help_has_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("parallel_ppo.commands.train.leave", lambda code: None)
    monkeypatch.setattr(sys, "argv", [command])
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--help"])
    assert ended.value.code == 0
    assert "\nexamples:\n  " in capsys.readouterr().out
