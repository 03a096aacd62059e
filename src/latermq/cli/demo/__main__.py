"""`python -m latermq.cli.demo`: plays the demo in a temporary folder, and cleans up whatever happens.

Exits with 0 only if every step succeeds, and with 130 after Ctrl-C.
"""

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from latermq.cli.demo.checks import DemoFailed
from latermq.cli.demo.progress import Progress
from latermq.cli.demo.scale import FULL, SHORT, Scale
from latermq.cli.demo.server import Server
from latermq.cli.demo.story import Story, stop_and_restart
from latermq.cli.event_loop import run
from latermq.errors import LaterMQError

INTERRUPTED = 130


class Demo:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, scale: Scale, report_folder: Path, *, pipeline: bool, keep: bool) -> None:
        self._folder = folder
        self._scale = scale
        self._report_folder = report_folder
        self._keep = keep
        self._pipeline = pipeline
        self._console = Console(highlight=False)
        data = folder / "data"
        self._data = data
        self._server = Server(data, folder, scale.settings, pipeline=pipeline)
        # Spark takes its time to start, and nothing of the last step needs it.
        self._successor = Server(data, folder, scale.settings, pipeline=pipeline and keep, keep=keep)

    def run(self) -> int:
        """Play the demo. Returns the exit code."""
        is_kept = False
        try:
            run(self._play())
            is_kept = self._keep
        except KeyboardInterrupt:
            self._console.print("\nstopping the demo …")
            return INTERRUPTED
        except (DemoFailed, LaterMQError, TimeoutError, OSError, ExceptionGroup) as error:
            self._console.print(f"[red]The demo failed: {_text_of(error)}[/red]", soft_wrap=True)
            log = self._successor.log_end() or self._server.log_end()
            self._console.print(f"End of the server's log:\n{log}", markup=False, soft_wrap=True)
            return 1
        finally:
            self._server.close()
            if not is_kept:
                self._successor.close()
        return 0

    async def _play(self) -> None:
        async with asyncio.timeout(self._scale.deadline_s):
            progress = Progress(self._console)
            async with progress.step("start latermq serve") as findings:
                findings.append(await self._server.start())
            progress.note(f"        watch it in the console: http://{self._server.http}/")
            if not self._server.has_pipeline:
                progress.note(f"        the steps with Spark are left out: {_reason(self._server, self._pipeline)}")
            story = Story(self._server, progress, self._scale, self._report_folder)
            await story.tell()
            await stop_and_restart(self._server, self._successor, self._data, progress)
        progress.print_figures(story.figures)
        self._console.print(f"[green]All {progress.steps} steps succeeded.[/green]")
        self._print_end(story)

    def _print_end(self, story: Story) -> None:
        lines = []
        if story.report_page:
            lines.append(f"report:   {story.report_page}")
        else:
            lines.append("report:   none, because the steps with Spark were left out")
        server = self._successor
        if self._keep:
            lines += [
                f"console:  http://{server.http}/",
                f"clients:  name server {server.namesrv}, gRPC proxy {server.proxy}",
                f"stop it:  kill {server.pid}; tail --pid={server.pid} -f /dev/null; rm -r {self._folder}",
            ]
        else:
            lines.append("console:  stopped with the demo; `make demo KEEP=1` leaves it running")
        for line in lines:
            self._console.print(line, markup=False, soft_wrap=True)


def _reason(server: Server, pipeline: bool) -> str:
    return server.pipeline.removeprefix("no pipeline: ") if pipeline else "--no-spark was given"


def _text_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_text_of(one) for one in error.exceptions)
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, LaterMQError):
        return f"{error.message} {error.hint}".strip()
    return str(error) or type(error).__name__


def _interrupt_on_signals() -> None:
    """Clean up on each signal as on Ctrl-C, even if the shell that started this ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m latermq.cli.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server running at the end")
    parser.add_argument("--short", action="store_true", help="fewer orders and a smaller campaign")
    parser.add_argument("--no-spark", action="store_true", help="without the steps that need Java")
    parser.add_argument("--report", type=Path, default=Path("build/demo"), metavar="DIR", help="folder of the report")
    options = parser.parse_args()
    _interrupt_on_signals()
    folder = None
    code = 1
    try:
        folder = Path(tempfile.mkdtemp(prefix="latermq-demo-"))
        scale = SHORT if options.short else FULL
        options.report.mkdir(parents=True, exist_ok=True)
        demo = Demo(folder, scale, options.report, pipeline=not options.no_spark, keep=options.keep)
        code = demo.run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        if folder is not None and not (options.keep and code == 0):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _remove(folder)
    return code


def _remove(folder: Path) -> None:
    # A process of Spark that was just killed may still create a file: then the second try removes it.
    for _ in range(2):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            return
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
