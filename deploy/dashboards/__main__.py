"""Writes the dashboards' JSON: `python -m deploy.dashboards [FOLDER]`."""

import argparse
from pathlib import Path

from deploy.dashboards.boards import BOARDS
from deploy.dashboards.grafana import rendered


def main() -> None:
    """Write one file a dashboard into the folder, by default the one that is committed."""
    parser = argparse.ArgumentParser(prog="python -m deploy.dashboards", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder: Path = parser.parse_args().folder
    for board in BOARDS:
        (folder / f"{board.uid}.json").write_text(rendered(board), encoding="utf-8")


if __name__ == "__main__":
    main()
