"""Runs `latermq` commands and programs of the demo as processes, and ends them with it."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any

from latermq.cli.demo.checks import DemoFailed
from latermq.cli.demo.server import environment


@contextlib.asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Process]:
    """Run `python -m ARGUMENTS`. It is killed if the block fails, and its failure fails the demo."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment()
    )
    assert process.stderr is not None
    # Read all the time, because a full pipe would stop the program.
    errors = asyncio.create_task(process.stderr.read())
    try:
        yield process
        if await process.wait():
            text = (await errors).decode(errors="replace").strip()
            raise DemoFailed(f"{' '.join(arguments)} exited with {process.returncode}: {text[-1_000:]}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await errors


async def latermq(*arguments: str) -> str:
    """Run a `latermq` command and return its output."""
    async with running("latermq", *arguments) as process:
        assert process.stdout is not None
        return (await process.stdout.read()).decode()


async def latermq_rows(*arguments: str) -> list[dict[str, Any]]:
    """Run a `latermq` command with --json and return its rows."""
    return [json.loads(line) for line in (await latermq(*arguments, "--json")).splitlines()]
