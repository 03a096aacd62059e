"""Placeholder until the SDK is here."""

import typer

app = typer.Typer()


@app.command("list")
def list_() -> None: ...
@app.command("show")
def consume() -> None: ...
