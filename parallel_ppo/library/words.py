"""Messages of commands in the words of Python: keywords in place of flags."""

import re

NAMES = {"trust_checkpoint": "trust=True"}


def in_python(line: str) -> str:
    """`--set training.gamma=0.9` -> `gamma=0.9`, `--resume RUN` -> `resume='RUN'`, `--num-envs` -> `num_envs`."""
    line = re.sub(r"--set '?(?:env|training|\w+)\.([\w.]+=\S+?)'?(?=[\s,;]|$)", r"\1", line)
    line = re.sub(r"--(resume|config|init-from) ([^\s;,-]\S*?)(?=[\s,;:]|$)", r"\1='\2'", line)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*[a-z])", _keyword, line)


def _keyword(match: re.Match[str]) -> str:
    name = match[1].replace("-", "_")
    return NAMES.get(name, name)
