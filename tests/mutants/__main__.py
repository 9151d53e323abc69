"""``python -m tests.mutants``: plants every bug of the catalogue and says which were caught."""

import sys

import click
from rich.console import Console
from rich.table import Table

from benchmarks.common.progress import progress_bar

from . import runner
from .catalogue import MUTANTS


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="List the planted bugs and end.")
@click.option("--verbose", is_flag=True, help="Show how the tests of every planted bug ended.")
def main(names: tuple[str, ...], only_list: bool, verbose: bool) -> None:
    """Plants bugs in copies of the project and runs the tests that should notice them.

    NAMES are those of bugs, or the beginnings of names; without any, all are planted. The exit
    status is 1 if one survived that should not, or is out of date.
    """
    console = Console(width=None if sys.stdout.isatty() else 120)
    chosen = [m for m in MUTANTS if not names or m.name.startswith(names)]
    if not chosen:
        raise click.ClickException(f"no planted bug is called {' or '.join(names)}; see --list")
    if only_list:
        console.print(_table(chosen))
        return
    outcomes = []
    with progress_bar(console) as bar:
        task = bar.add_task("", total=len(chosen))
        for mutant in chosen:
            bar.update(task, description=mutant.name)
            outcome = runner.plant(mutant)
            outcomes.append(outcome)
            bar.update(task, advance=1)
            if not console.is_terminal:
                text = f"{outcome.mutant.name}: {outcome.kind} after {outcome.seconds:.0f} s"
                click.echo(text, err=True)
    table = Table(title="Planted bugs")
    for heading in ("bug", "what goes wrong", "outcome", "seconds"):
        table.add_column(heading)
    for outcome in outcomes:
        kind = outcome.kind if outcome.is_fine else f"[red]{outcome.kind}[/red]"
        about = outcome.mutant.about
        if outcome.mutant.survives:
            about += f" (known to survive: {outcome.mutant.survives})"
        table.add_row(outcome.mutant.name, about, kind, f"{outcome.seconds:.0f}")
    console.print(table)
    for outcome in outcomes:
        if verbose or not outcome.is_fine:
            console.rule(f"{outcome.mutant.name}: {outcome.kind}")
            console.print(outcome.details, markup=False, highlight=False)
    caught = sum(outcome.kind == "caught" for outcome in outcomes)
    console.print(f"{caught} of {len(outcomes)} were caught.", highlight=False)
    sys.exit(not all(outcome.is_fine for outcome in outcomes))


def _table(mutants: list) -> Table:
    table = Table()
    for heading in ("bug", "what goes wrong", "file", "tests"):
        table.add_column(heading)
    for mutant in mutants:
        table.add_row(mutant.name, mutant.about, mutant.path, " ".join(mutant.tests))
    return table


if __name__ == "__main__":
    main()
