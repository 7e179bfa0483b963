"""`agent-rl report`: what happened in a training run, as a page, as data and in a few lines.

    agent-rl report runs/nat_grpo
    agent-rl report runs/nat_grpo --compare runs/second --output nat.html

Reads the run's folder, also while the run goes on, and writes `report.html` (one file, opened without a network) and
`report.json` into it, or both beside each other where --output says; `report_episodes.html` beside them, the viewer's
page, has the episodes that the report links to. Loads no model and runs no episode.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer


def main(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as runs/nat_grpo.")],
    output: Annotated[
        Path | None, typer.Option(help="The page; the data go beside it.", show_default="RUN/report.html")
    ] = None,
    compare: Annotated[Path | None, typer.Option(help="Folder of another run to compare with.")] = None,
) -> None:
    """Report what a run learned, what to change, its curves, and the held-out tasks whose outcome changed."""
    from rich.console import Console

    from agent_rl.errors import ConfigError
    from agent_rl.reports.run.data import read_run
    from agent_rl.reports.run.links import find_links, write_linked_page
    from agent_rl.reports.run.page import run_page
    from agent_rl.reports.run.report import as_data, make_report, show
    from agent_rl.telemetry.files import make_folder, write_json, write_text

    report = make_report(read_run(run), None if compare is None else read_run(compare))
    page_file = output or run / "report.html"
    if page_file.suffix != ".html":
        raise ConfigError(f"--output is {page_file}, expected a file that ends with .html; name one")
    make_folder(page_file.parent, "the folder of --output")
    data_file, episodes_file = page_file.with_suffix(".json"), page_file.with_name(f"{page_file.stem}_episodes.html")
    links = find_links(run, report.held_out)
    try:
        write_json(data_file, as_data(report, links))
        write_text(page_file, run_page(report, links, episodes_file.name))
    except OSError as error:
        raise ConfigError(
            f"{page_file} and {data_file.name} cannot be written ({error.strerror}); give --output"
        ) from None
    files = [page_file, data_file]
    if not links.is_empty:
        write_linked_page(episodes_file, run, links)
        files.append(episodes_file)
    show(report, Console(width=None if sys.stdout and sys.stdout.isatty() else 80))
    print(f"Report: {', '.join(map(str, files))}")
