"""`attnkit bench`: the peak rates of this machine, as a table and as a file for `attnkit plan --machine`."""

import argparse

import torch

from attnkit.profile.ceilings import measure_machine
from attnkit.registry import ConfigurationError
from attnkit.train.output import output


def bench(arguments: list[str]) -> int:
    """Run `attnkit bench`."""
    parser = argparse.ArgumentParser(prog="attnkit bench", description=(__doc__ or "")[16:], allow_abbrev=False)
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="processes of an all-reduce on this machine (default: its GPUs)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the rates to this file, for attnkit plan --machine FILE")
    chosen = parser.parse_args(arguments)
    processes = chosen.processes if chosen.processes is not None else max(torch.cuda.device_count(), 1)
    if processes < 1:
        raise ConfigurationError(f"--processes must be at least 1, but is {processes}")
    machine = measure_machine(processes=processes)
    print(machine.device)
    for kind, rate in machine.tflops.items():
        print(f"  {f'{kind} matrix products, TFLOP/s':<46}{rate:>12,.3f}")
    print(f"  {'memory bandwidth (reads and writes), GB/s':<46}{machine.memory_bandwidth or 0:>12,.1f}")
    print(f"  {'memory, GB':<46}{(machine.memory or 0) / 1e9:>12,.1f}")
    if machine.bandwidth is not None:
        print(f"  {f'all-reduce, sent by each of {processes} processes, GB/s':<46}{machine.bandwidth:>12,.2f}")
    if chosen.json is not None:
        with output(chosen.json) as file:
            file.write(machine.as_json())
    return 0
