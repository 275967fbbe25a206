"""`parallel-ppo export`, `push` and `verify`: a policy for other programs and other people."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from parallel_ppo.arguments import Parser, guarded, named_run, positive, writable_file
from parallel_ppo.exits import ExitCode, InputError
from parallel_ppo.machine.descendants import watching_descendants
from parallel_ppo.machine.placement import set_thread_variables
from parallel_ppo.printable import printable

WHERE = "a run directory (its latest checkpoint), its name in runs/, or one checkpoint of it"


def export(argv: Sequence[str] | None = None) -> int:
    return guarded(_export, argv)


def _export(argv: Sequence[str] | None) -> int:
    parser = Parser(
        description="Write a policy as one ONNX graph: normalization, network and the most likely action.",
        examples=("-m parallel_ppo export runs/parallel-1 --output policy.onnx",),
    )
    add = parser.add_argument
    add("policy", type=named_run, metavar="RUN_OR_FILE", help=f"{WHERE}, or weights (.safetensors)")
    add("--output", type=Path, required=True, metavar="FILE", help="a name that ends in .onnx")
    parser.add_trust_flag()
    arguments = parser.parse_args(argv)
    output = writable_file("--output", arguments.output, (".onnx",))
    set_thread_variables()
    from parallel_ppo.evaluation.policy_files import load
    from parallel_ppo.sharing import onnx

    onnx.check_installed()
    weights, _ = load(arguments.policy, trust=arguments.trust_checkpoint)
    difference = onnx.export(weights, output)
    if not arguments.quiet:
        within = f"{max(difference, 1e-7):.0e}"
        print(printable(f"{arguments.output}: computes what {weights.path} does, within {within}"))
    return ExitCode.DONE


def push(argv: Sequence[str] | None = None) -> int:
    with watching_descendants():  # the film is made here
        return guarded(_push, argv)


def _push(argv: Sequence[str] | None) -> int:
    parser = Parser(
        description="Share a policy on the Hugging Face hub: weights, settings, evaluation, film, and the hash"
        " of every\niteration, so that others can check it. Plays 100 episodes for the model card.",
        examples=(
            "-m parallel_ppo push runs/parallel-1 --repo user/ppo-cartpole",
            "-m parallel_ppo push runs/parallel-1/checkpoints/best --repo user/ppo-coinrun --dry-run shared",
        ),
    )
    add = parser.add_argument
    add("policy", type=named_run, metavar="RUN", help=WHERE)
    add("--repo", required=True, metavar="USER/NAME", help="where it goes; made if it does not exist")
    add("--private", action="store_true", help="make the repository private, if it is a new one")
    dry = "write the folder and send nothing (default: shared in the run directory)"
    add("--dry-run", type=Path, nargs="?", const=Path(), metavar="FOLDER", help=dry)
    add("--skip-play", action="store_true", help="without a film")
    parser.add_trust_flag()
    arguments = parser.parse_args(argv)
    from parallel_ppo.evaluation import hub

    place = hub.parse(arguments.repo)
    if place.revision is not None:
        raise InputError(f"--repo {arguments.repo}: expected user/name; a push makes a new revision")
    if arguments.dry_run is None:
        hub.check_login()
    set_thread_variables()
    from parallel_ppo.reports.command_line import directory_for
    from parallel_ppo.sharing import folder

    source = folder.read_source(arguments.policy, trust=arguments.trust_checkpoint)
    is_dry = arguments.dry_run is not None
    with contextlib.ExitStack() as stack:
        parent = source.root if is_dry else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        is_named = arguments.dry_run not in (None, Path())
        target = arguments.dry_run if is_named else directory_for("shared", [parent])
        folder.write(source, target, repo=place.repo, film=not arguments.skip_play, quiet=arguments.quiet)
        result = f"{target}: contains the files for {place}; nothing was sent"
        if not is_dry:
            message = f"{source.settings.env.id}, {source.policy.weights.env_steps:,} steps"
            result = f"sent: {hub.upload(target, place.repo, private=arguments.private, message=message)}"
    if not arguments.quiet:
        print(printable(result))
    return ExitCode.DONE


def verify(argv: Sequence[str] | None = None) -> int:
    return guarded(_verify, argv)


def _verify(argv: Sequence[str] | None) -> int:
    parser = Parser(
        description="Train a shared policy again and compare the hash of every iteration.\nExit codes: 0 the"
        " same, 1 different, 2 damaged folder, 8 not comparable (another CPU model or library version).",
        examples=(
            "-m parallel_ppo verify shared --iterations 10",
            "-m parallel_ppo verify hub:user/ppo-cartpole@main",
        ),
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="what `push` wrote, or hub:user/name@revision")
    add("--iterations", type=positive, metavar="N", help="how many to train (default: 10, or all if fewer)")
    parser.add_trust_flag()
    arguments = parser.parse_args(argv)
    set_thread_variables()
    from parallel_ppo.evaluation import hub
    from parallel_ppo.machine.signals import Signals
    from parallel_ppo.sharing import folder
    from parallel_ppo.sharing.verify import read_claim
    from parallel_ppo.sharing.verify import verify as decide

    if arguments.folder.startswith(hub.HUB):
        path = hub.fetch(arguments.folder, (*folder.CHECKED, folder.PROVENANCE))
    else:
        path = Path(arguments.folder)
    claim = read_claim(path, arguments.iterations, trust=arguments.trust_checkpoint)
    signals = Signals()
    try:
        verdict = decide(claim, signals)
    finally:
        signals.close()
    if not arguments.quiet or verdict.code != ExitCode.DONE:
        print(printable(verdict.text))
    return verdict.code
