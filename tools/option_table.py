"""Writes the table of the reference's options into docs/python.md, from the one the builder works by."""

from pathlib import Path

from hindcast.run.python.options import option_table

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
BEGIN, END = "<!-- options: written by tools/option_table.py -->", "<!-- end of options -->"


def with_table(page: str) -> str:
    """The page with the table between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{option_table()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
