"""Did anything get slower? Two runs of the suite, compared by how close each comes to the limits of its own machine.

    python benchmarks/check_speed.py [OLD.json] [NEW.json]

OLD is the published run by default; without NEW a quick run is made now. Says what got worse, and then ends with 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from suite.check import report
from suite.results import Results

HERE = Path(__file__).parent
PUBLISHED = HERE.parent / "docs/benchmarks/results.json"


def quick_run() -> Results:
    """A run of the quick grid, made now."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "new.json"
        subprocess.run([sys.executable, str(HERE / "suite.py"), "--quick", "--json", str(file)], check=True)
        return Results.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", default=PUBLISHED)
    parser.add_argument("new", type=Path, nargs="?")
    given = parser.parse_args()
    new = Results.load(given.new) if given.new else quick_run()
    lines, code = report(Results.load(given.old), new)
    print("\n".join(lines))
    sys.exit(code)


if __name__ == "__main__":
    main()
