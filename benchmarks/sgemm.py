"""The machine's own rate: prints GFLOP/s of a float32 matrix product on all cores it may use."""

import os
import statistics
import sys
import time

SIZE, SECONDS = 2048, 3.0


def main() -> None:
    cores = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(cores)
    import torch

    torch.set_num_threads(cores)
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    result = torch.empty(SIZE, SIZE)
    rates, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end or len(rates) < 5:
        began = time.monotonic()
        torch.mm(left, right, out=result)
        rates.append(2 * SIZE**3 / (time.monotonic() - began) / 1e9)
    print(statistics.median(rates[1:]))


if __name__ == "__main__":
    main()
