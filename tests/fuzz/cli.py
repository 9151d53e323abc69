"""The command line: ``python -m tests.fuzz``."""

import secrets
import sys
import time

import click
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tqdm import tqdm

from tests.fuzz.hostile_child import outcome_of
from tests.fuzz.hostile_runner import run_calls
from tests.fuzz.optimizer_edits import OptimizerMachine
from tests.fuzz.optimizer_machine import COUNTS, TALLY

BATCH = 50  # sequences that one seed stands for


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Random uses of the optimizer and random calls of the operators.

    Without --seed a new one is drawn. It is printed first; the same seed repeats the same run.
    """
    torch.set_num_threads(1)


def seed_option(function):
    return click.option("--seed", "first", type=int, help="repeats a run")(function)


@main.command()
@click.option("--sequences", default=2000, show_default=True, help="how many")
@click.option("--steps", default=12, show_default=True, help="rules of a sequence")
@seed_option
def optimizer(sequences, steps, first):
    """Sequences of uses of MBF, on the compiled and the plain backend.

    Each seed stands for a batch of 50 sequences. When one fails, its shortest form is printed, and
    the command that repeats its batch.
    """
    first = secrets.randbelow(10**6) if first is None else first
    print(f"seed {first}", flush=True)
    batches, start, failed = -(-sequences // BATCH), time.monotonic(), []
    for number in tqdm(range(first, first + batches), unit="batch", disable=None):
        try:
            run_batch(number, min(BATCH, sequences), steps)
        except KeyboardInterrupt:
            break  # with the counts so far
        except Exception as error:
            failed.append(number)
            notes = "\n".join(getattr(error, "__notes__", []))
            again = f"make fuzz ONLY=optimizer SEQUENCES={min(BATCH, sequences)} SEED={number}"
            print(f"\n{type(error).__name__}: {error}\n{notes}\nrepeat with: {again}", flush=True)
    rules = {name: n for name, n in sorted(COUNTS.items()) if name not in ("sequences", "steps")}
    for name, count in rules.items():
        print(f"{count:9}  {name}")
    print(
        f"{COUNTS['sequences']} sequences, {COUNTS['steps']} steps, {sum(rules.values())} rules in "
        f"{time.monotonic() - start:.0f} s from seed {first}; {TALLY.compared} comparisons, "
        f"{TALLY.ill_conditioned} left out as ill-conditioned; failed batches: {failed or 'none'}"
    )
    sys.exit(bool(failed))


def run_batch(number, sequences, steps):
    machine = type("Machine", (OptimizerMachine,), {})
    seed(number)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


@main.command()
@click.option("--calls", default=20000, show_default=True, help="how many")
@seed_option
def operators(calls, first):
    """Calls of torch.ops.mbf_kernels and of MiniBlocks with right and wrong arguments.

    Each seed stands for one call. They run in child processes; a crash is told with its seed.
    """
    first = secrets.randbelow(10**9) if first is None else first
    print(f"seed {first}", flush=True)
    with tqdm(total=calls, unit="call", disable=None) as bar:
        outcomes, failures = run_calls(first, calls, lambda done: bar.update(done - bar.n))
    for outcome, count in outcomes.most_common():
        print(f"{count:9}  {outcome}")
    for failure in failures:
        print(failure)
    if failures:
        print("repeat one in this process with: python -m tests.fuzz call SEED")
    print(f"{outcomes.total()} calls from seed {first}, {len(failures)} failures")
    sys.exit(bool(failures))


@main.command()
@click.argument("number", type=int, metavar="SEED")
def call(number):
    """Makes the call of one seed in this process, for a debugger."""
    print(*outcome_of(number))
