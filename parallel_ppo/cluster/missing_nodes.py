"""Who is missing when a meeting fails: those who can still reach the first node's store say so, the
others are named.
"""

import contextlib
import threading
import time

import torch.distributed as distributed

from parallel_ppo.cluster.nodes import Node

PATIENCE = 2.0  # for others to notice too, which they do at once: this node's connections close first


def who_is_missing(
    store: distributed.Store, node: Node, names: list[str], iteration: int, error: BaseException
) -> str:
    """One line. Closes this node's connections, so that no one waits for it any longer."""
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):
        distributed.destroy_process_group()
    answered: set[int] | None = None

    def ask() -> None:
        nonlocal answered
        with contextlib.suppress(RuntimeError, ValueError):
            store.set(f"alive/{node.rank}", "1")
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                found = {rank for rank in range(node.size) if store.check([f"alive/{rank}"])}
                answered = found
                if len(found) == node.size:
                    break
                time.sleep(0.05)

    asking = threading.Thread(target=ask, daemon=True)  # a store behind a cut link may never answer
    asking.start()
    asking.join(PATIENCE + 0.5)
    what = "gave no sign of life in time" if "imed out" in str(error) else "closed the connection"
    if answered is None:
        who = f"node {names[0]} cannot be reached"
    else:
        missing = [name for rank, name in enumerate(names) if rank not in answered]
        who = f"node {', '.join(missing)} {what}" if missing else "a connection between the nodes failed"
    return f"{who} (iteration {iteration}); nothing new was saved, the last checkpoint stands"
