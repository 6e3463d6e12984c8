"""Options that the commands which encode share."""

from __future__ import annotations

import click

device = click.option("--device", default=None, help="cpu, cuda, …  [default: the best there is]")
dtype = click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16"]),
    default="fp32",
    show_default=True,
    help="Of a sparse model's network; bf16 is the faster one where the processor or GPU multiplies it.",
)
