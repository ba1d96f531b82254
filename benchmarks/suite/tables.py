"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bold", "table"]


def bold(text: str) -> str:
    return f"**{text}**"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text to the left, of figures to the right: a column is one of figures where a row begins with one."""
    aligned = [
        "--:" if any(row[column].strip("*≥≤ ")[:1].isdigit() for row in rows) and column else "---"
        for column in range(len(head))
    ]
    lines = [head, aligned, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
