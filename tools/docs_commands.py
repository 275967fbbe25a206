"""The commands that README and docs print, and how each is made short enough to be run.

The rule: a command is run as it is printed, but flags that set a budget get the small values of `BUDGETS`
and `FLAGS` (added where they are not printed), words that stand for something (`RUN`, `SEED`) get what
`STAND_INS` says, and several hosts become this one. What cannot be run is in `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Printed(NamedTuple):
    where: str  # page:line
    text: str
    folder: str = "."  # a `cd` before it in its block


SCRIPT = r"(?:PROJECT/|\.\./)?(?:\w+/)*\w+\.py"
WORD = "python|make|parallel-ppo|torchrun|pip|hf|pytest|source|printf|wandb"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:(?:{WORD}) |\./setup\.sh|{SCRIPT} )")
SHELL = ("", "bash", "sh", "console")  # languages of blocks that hold commands


def printed(root: Path) -> list[Printed]:
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    return [command for page in pages for command in commands_of(page.read_text(), page.name)]


def commands_of(text: str, page: str) -> Iterator[Printed]:
    """Of a page: lines of blocks, and of the running text what stands in backticks and has arguments."""
    block: list[tuple[int, str]] | None = None
    language = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            if block is not None and language in SHELL:
                yield from _of_block(block, page)
            block, language = ([], line.strip(" `")) if block is None else (None, "")
        elif block is not None:
            block.append((number, line))
        else:
            for words in re.findall(r"`([^`]+)`", line):
                if COMMAND.match(words) and "..." not in words:
                    script = re.match(rf"{SCRIPT} ", words)
                    yield Printed(f"{page}:{number}", f"python {words}" if script else words)


def _of_block(lines: list[tuple[int, str]], page: str) -> Iterator[Printed]:
    """A block that begins with `#!` is a script for elsewhere; lines without a program are output."""
    if lines and lines[0][1].startswith("#!"):
        return
    folder, begun = ".", ""
    for number, line in lines:
        whole = begun + re.sub(r"(^|\s+)# .*$|^#.*$", "", line).strip()
        begun = whole.removesuffix("\\") if whole.endswith("\\") else ""
        if begun or not whole:
            continue
        if whole.startswith("cd "):
            folder = whole.removeprefix("cd ")
        elif COMMAND.match(whole) and "..." not in whole:
            yield Printed(f"{page}:{number}", whole, folder)


# --- the rule -----------------------------------------------------------------------------------------------

BUDGETS = {
    "--duration": "5s",
    "--total-timesteps": "256",
    "--num-episodes": "2",
    "--rounds": "1",
    "--repeats": "1",
    "--iterations": "1",
    "--scale": "0.01",
    "--nnodes": "1",
    "--interval": "1",
}  # wherever they are printed
SHAPE = {"--num-envs": "8", "--n-steps": "16", "--batch-size": "64"}
TRAIN = {"--total-timesteps": "256", **SHAPE}
FLAGS: dict[str, dict[str, str]] = {
    "train": TRAIN,
    "train_parallel_timed.py": TRAIN,
    "train_timed.py": TRAIN,
    "train_ppo_sequential.py": TRAIN,
    "train_ppo_distributed.py": TRAIN,
    "evaluate.py": {"--num-episodes": "2", "--max-steps": "50"},
    "play.py": {"--max-steps": "20"},
    "push": {"--skip-play": ""},
    "benchmarks/throughput.py": {"--against": "sequential", "--rounds": "1", "--iterations": "1", **SHAPE},
    "benchmarks/scaling.py": {
        "--repeats": "1",
        "--total-iters": "3",
        "--num-envs": "8",
        "--rollout-steps": "16",
    },
    "benchmarks/kernels.py": {"--rounds": "1"},
    "tools/suite.py": {"--total-timesteps": "256", "--eval-episodes": "2", "--seeds": "1"},
    "tools/autotune.py": {"--seconds": "5"},
    "tools/same_bits.py": {"--only": "CartPole"},
    "tools/launch/ssh.py": {"--dry-run": ""},
}  # by script, or by the word after `parallel-ppo`; peers of the benchmarks have venvs of their own
MAKE = re.compile(r"make (?:train|compare|evaluate|play|quick)[\w-]*")
STAND_INS = [
    (r"--sequential DIR", "--sequential runs/s1"),
    (r"--parallel DIR", "--parallel runs/p1"),
    (r"(--output-dir|--checkpoint) RUN\b", r"\1 runs/named"),
    (r"(state_plane\.py) RUN\b", r"\1 runs/pendulum"),
    (r"(play\.py|evaluate\.py) RUN(?= --levels)", r"\1 runs/few-levels"),
    (r"\b(evaluate|play)\.py (?=--(?:render|levels))", r"\1.py runs/few-levels "),
    (r"\bRUN\b", "runs/p1"),
    (r"\bSEED\b", "1"),
    (r"--env ENV\b", "--env CartPole-v1"),
    (r"config/NAME\.yaml", "config/cartpole.yaml"),
    (r"my_module:MyTrunk", "small_resnet:SmallResNet"),
    (r"\bPROJECT/", "../"),
    (r"10\.0\.0\.\d\b", "127.0.0.1"),
    (r"--nnodes=\d+", "--nnodes=1"),
    (r"--rdzv-backend=c10d --rdzv-endpoint=\S+", "--standalone"),
    (r"CLUSTER_ROUNDS=\d+", "CLUSTER_ROUNDS=1"),
]
NOT_RUN = {
    r"make (test|check|test-full)$": "the tests, which are run for themselves",
    r"wandb sync": "sends to a service",
    r"--requeue": "for a job of SLURM, whose scontrol it asks for",
    r"hf auth login": "asks for a token",
}


def reason_not_to_run(text: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, text)), None)


def program_of(text: str) -> str:
    """The script, or the word after `parallel-ppo`."""
    for before, word in zip(["", *text.split()], text.split(), strict=False):
        if before == "parallel-ppo" or re.fullmatch(SCRIPT, word):
            return word.removeprefix("../")
    return ""


def shortened(text: str) -> str:
    for pattern, stand_in in STAND_INS:
        text = re.sub(pattern, stand_in, text)
    if MAKE.match(text):
        return f"{re.sub(r' DURATION=[^ ]+', '', text)} DURATION=5s" if "train" in text else text
    text, separator, rest = text.partition(" -- ")
    program = program_of(text)
    flags = FLAGS.get(program, {})
    if program == "tools/suite.py" and "--resume" not in text:
        separator, rest = " -- ", _with_flags(rest, SHAPE)
    for flag, value in BUDGETS.items():
        text = re.sub(rf"{flag} [^ -]\S*", f"{flag} {value}", text)
    if "--resume" in text:  # its settings stand; its budget must be larger than what it has spent
        return text.replace("--duration 5s", "--duration 12s") + separator + rest
    if flags is TRAIN and re.search(r"-v\d|config/(?!ppo)|seek\.yaml", text):
        flags = {"--total-timesteps": "256"}  # small environments are fast in their own shape
    if "--duration" in text:
        flags = {flag: value for flag, value in flags.items() if flag != "--total-timesteps"}
    if "--num-levels" in text and flags:  # so that some episodes end
        flags = {**flags, "--total-timesteps": "2048"}
    return _with_flags(text, flags) + separator + rest


def _with_flags(text: str, flags: dict[str, str]) -> str:
    words = shlex.split(text)
    for flag, value in flags.items():
        if flag in words and value:
            text = re.sub(rf"{flag} \S+", f"{flag} {value}", text)
        elif flag not in words:
            text = f"{text} {flag} {value}".strip()
    return text
