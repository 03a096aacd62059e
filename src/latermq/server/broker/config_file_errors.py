"""Log lines about configuration files that could not be parsed at start."""

from collections.abc import Iterable

import structlog

from latermq.store.files.set_aside import Trouble

_SHOWN = 10
_log = structlog.get_logger(__name__)


def log_config_file_errors(troubles: Iterable[Trouble]) -> None:
    """Log one error per file."""
    for trouble in troubles:
        _log.error(
            "config file not understood" if trouble.kept_as else "config file missing",
            file=trouble.path,
            reason=trouble.reason,
            kept_as=trouble.kept_as,
            used_instead=trouble.backup or ("nothing" if trouble.is_lost else "what is understood"),
            lost=[name[:100] for name in trouble.lost[:_SHOWN]],
            lost_count=len(trouble.lost),
            hint=trouble.advice,
        )
