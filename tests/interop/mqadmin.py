"""Apache's mqadmin, run inside one Java process; it says only in what it prints whether a command worked."""

import re

from tests.interop.programs import Program

# A stack trace begins at the left margin; the word alone may be part of a setting's name.
_FAILURE = re.compile(r"^[a-z]+(\.\w+)+(Exception|Error)\b", re.MULTILINE)


class MqAdmin:
    """Its process must log nothing: what it logs would be taken for what a command printed."""

    def __init__(self, program: Program, namesrv: str) -> None:
        self._program = program
        self._namesrv = namesrv

    def run(self, command: str, *options: str) -> str:
        """What the command printed; it must not have failed."""
        printed = self._print(command, *options)
        assert not _FAILURE.search(printed), f"mqadmin {command} {' '.join(options)} failed:\n{printed}"
        return printed

    def refused(self, command: str, *options: str) -> str:
        """What the command printed; it must have failed."""
        printed = self._print(command, *options)
        assert _FAILURE.search(printed), f"mqadmin {command} {' '.join(options)} did not fail:\n{printed}"
        return printed

    def rows(self, command: str, *options: str) -> list[list[str]]:
        """A table, without its heading, cut at runs of blanks."""
        lines = [line for line in self.run(command, *options).splitlines() if line and not line.startswith("#")]
        return [re.split(r"\s{2,}", line.strip()) for line in lines]

    def settings(self, command: str, *options: str) -> dict[str, str]:
        """Lines of `name = value` or `name : value`."""
        found = re.findall(r"^(\w\S*?) *[=:] +(.*?) *$", self.run(command, *options), re.MULTILINE)
        return dict(found)

    def described(self, command: str, *options: str) -> dict[str, str]:
        """Lines of `A name:   value`, and the whole text as `all`."""
        printed = self.run(command, *options)
        return {**dict(re.findall(r"^([A-Z][A-Za-z ]*):\s+(.*?)\s*$", printed, re.MULTILINE)), "all": printed}

    def _print(self, command: str, *options: str) -> str:
        printed: str = self._program.call("mqadmin", argv=[command, *options, "-n", self._namesrv])["output"]
        return printed
