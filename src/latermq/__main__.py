"""The `latermq` command, which is also `python -m latermq`."""

import signal
import sys


def main() -> int:
    """Load the commands, and run the one that the arguments name. Return its exit code.

    Loading takes a moment, in which Ctrl-C ends the process as it ends any other program, without a traceback.
    """
    # A shell has its background jobs ignore the signal: that stays so.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from latermq.cli import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
