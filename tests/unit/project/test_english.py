"""Project texts are plain technical English: phrases that must not occur, and what to write instead.

To check more files, add globs to CHECKED. To forbid a phrase, add a row to PHRASES with a sentence that shows it.
"""

import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Relative to the root of the project. In *.py files only comments, docstrings and string literals are checked.
CHECKED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/adr/*.md",
    "docs/architecture.md",
    "docs/benchmarks.md",
    "docs/cli.md",
    "docs/comparison.md",
    "docs/delay-levels.md",
    "docs/development.md",
    "docs/filters.md",
    "docs/formats/*.md",
    "docs/guides/*.md",
    "docs/operations.md",
    "docs/pipeline.md",
    "docs/protocol.md",
    "docs/python-client.md",
    "docs/retries.md",
    "docs/security.md",
    "docs/timers.md",
    "examples/*.*",
    "examples/notebooks/*",
    "scripts/demo",
    "scripts/site/*.py",
    "src/latermq/**/*.py",
    "tests/bench/*.py",
    "tests/integration/client_cluster.py",
    "tests/integration/test_admin_restarts.py",
    "tests/integration/test_cli_commands.py",
    "tests/integration/test_client.py",
    "tests/integration/test_dlq.py",
    "tests/integration/test_serve.py",
    "tests/security/test_pipeline_secret.py",
    "tests/support/**/*.py",
    "tests/unit/cli/*.py",
    "tests/unit/cli/test_config_horizon.py",
    "tests/unit/client/*.py",
    "tests/unit/message/test_redaction.py",
    "tests/unit/message/test_visible_text.py",
)


class Phrase(NamedTuple):
    """A phrase as a regular expression over words that are separated by single spaces, whatever the line breaks."""

    pattern: str
    instead: str
    example: str


_PLURALS = r"(?:messages|bytes|rows|timers|entries|connections|[KMG]i?B|µs)"
_UNITS = r"(?:second|minute|message|row|client|connection|turn|call|batch)"
_THINGS = r"(?:command|timer|message|second|row|file|topic|queue|cut|window|client|connection|store)"
_VALUES = (
    r"(?:number|integer|time|date|duration|size|JSON|base64|UTF-8|(?:topic |group )?name|topic|key|offset|address|path"
    r"|port|handle|level|leap|messages?|property|directory|text|command|list|map|delay|store id)"
)
_STORED = r"(?:records?|files?|folders?|messages?|timers?|entry|entries|rows?|units?|tables?|blocks?|segments?)"
_BE = r"(?:is|are|was|were)"
_NOT_LAGGING = r"(?<!lag )(?<!lags )(?<!lagging )(?<!far )(?<!fall )(?<!falls )"

PHRASES = (
    # Passive and archaic phrases
    Phrase(rf"{_BE} told", "receives, is notified, is reported", "The driver is told which epoch it has."),
    Phrase(r"be told (?:of|by|how|that)", "be reported, be recognised by", "Doubles can be told by their key."),
    Phrase(r"(?:tells?|told|telling) of", "reports, describes", "The log tells of each window."),
    Phrase(r"(?:speaks?|spoken) of", "refers to", "Files that the checkpoint speaks of are kept."),
    Phrase(r"(?:can|cannot|can't|could|could not) be had", "is available, is unavailable", "The port cannot be had."),
    Phrase(r"(?:gives?|gave|given|giving) back", "returns, sends back", "A consumer gives back a message."),
    Phrase(r"(?:lets?|letting) go", "releases, closes", "The pool lets go of the file."),
    Phrase(r"(?:mends?|mended|mending)", "fixes, repairs", "Only the newest release is mended."),
    Phrase(r"(?:believes?|believed) (?:the|of the|a|no) (?:clock|client|driver)", "accepts", "It believes the clock."),
    Phrase(r"for want of", "because there is no, without", "It stopped for want of space."),
    Phrase(r"parted by", "separated by", "Names are parted by commas."),
    Phrase(r"anew", "again, from scratch", "The file is written anew."),
    Phrase(r"beside", "next to, alongside, in addition to", "The file lies there, and beside it a copy."),
    Phrase(r"once more", "again", "The request is sent once more."),
    Phrase(r"for ever", "forever, indefinitely", "A delivery is tried again for ever."),
    Phrase(r"a good deal", "much, many", "That costs a good deal."),
    Phrase(
        r"(?:therein|whereof|thence|thereupon)", "in it, of which, from there, then", "The rows therein are sorted."
    ),
    Phrase(r"in (?:its|their) stead", "instead", "Another attempt is used in its stead."),
    Phrase(r"whose sake", "for which", "The timer for whose sake it was read."),
    Phrase(r"would else", "would otherwise", "They would else return."),
    Phrase(r"(?<!time )go(?:es)? on(?! to )", "continues, resumes", "The start goes on without it."),
    Phrase(r"made on the way", "auto-created", "A topic that was made on the way."),
    Phrase(
        r"(?:dies|died|killed|lost) on the way", "crashes midway, is lost in transit", "A start that dies on the way."
    ),
    Phrase(rf"(?:{_BE}|been) put back|put back from", "restored from a backup", "A store put back from an old copy."),
    Phrase(r"those who carry", "contributors", "A page for those who carry it on."),
    Phrase(r"(?:is|are|was|were|be) passed over", "is skipped, is ignored", "Empty words are passed over."),
    Phrase(r"(?<!are )(?<!be )all the same(?=[.,;:])", "anyway, still", "The topic gets its messages all the same."),
    Phrase(r"at first and [^.;|]{1,30} at last", "grows from … to …", "After 0.1 s at first and 5 s at last."),
    Phrase(r"one behind the other", "concatenated, one after another", "Records, one behind the other."),
    Phrase(r"the death of (?:the|a) (?:machine|broker|process)", "a crash of", "It survives the death of the machine."),
    Phrase(rf"{_BE} (?:not )?believed", "accepted, the limit is", "Of those queues, 5 are believed."),
    Phrase(r"(?:is|are) not understood", "is not valid, cannot be parsed", "The setting is not understood."),
    Phrase(r"(?:share|shares|shared|sharing) out", "distribute", "The queues could not be shared out."),
    Phrase(r"(?:cannot|could not) be kept", "cannot store", "Offsets cannot be kept in the file."),
    Phrase(r"not what its \w+ flag says", "is not valid … data", "The body is not what its zlib flag says."),
    Phrase(r"parts? (?:\w+ )?from each other", "separate", "Bytes which part properties from each other."),
    Phrase(r"opens? to (?:more|less|what)", "decompresses to", "The body opens to more than 5 bytes."),
    Phrase(r"met an error", "failed with", "The server met an error of its own."),
    Phrase(r"cut short", "truncated, interrupted", "The index file is cut short."),
    Phrase(r"(?:breaks?|broke|broken) off", "is truncated, stops", "The batch breaks off at byte 12."),
    Phrase(r"(?:is|are|was|were|be|been) built again", "is rebuilt", "The wheel is built again from the log."),
    Phrase(r"leapt|leaps? (?:forward|back)", "jumped, jumps", "The clock leapt forward by an hour."),
    Phrase(r"look(?:s|ed)? at the (?:disk|log|clock)", "check", "Look at the disk; it may be full."),
    Phrase(r"as many as [a-z_.]+ allows", "the limit set by", "8 queues, as many as store.max_queues allows."),
    Phrase(r"set right", "corrected", "It waits until the clock is set right."),
    Phrase(r"(?:does|do|is|are) not understood", "cannot be parsed", "The header is not understood."),
    Phrase(r"no room left", "the disk is full", "There is no room left for the window."),
    Phrase(r"(?:is|are) not there", "is missing, does not exist, is unreachable", "The broker is not there."),
    Phrase(r"say (?:what|which|where|when)(?! the)", "give, set, specify", "Say which timers: --where."),
    # Clauses used as nouns, vague actors
    Phrase(r"what (?:comes in|came in|waits?|waited)", "incoming messages, pending timers", "It shows what waits."),
    Phrase(r"(?:all|everyone|those) who waits?|(?<=[,:;] )who waits", "waiting clients", "It serves all who wait."),
    Phrase(r"what (?:lies|lay|stands|stood) (?:ahead|behind|before|there|in)", "name it", "It reads what lies ahead."),
    Phrase(r"whose an? \w+ is", "who owns", "Whose an entry is follows from the cut."),
    Phrase(r"(?:nobody|somebody|anybody) [a-z]+", "no client, a user, any process", "A file that nobody reads."),
    Phrase(r"whoever", "the process that, the client that", "Whoever starts next repairs it."),
    Phrase(r"strangers?", "untrusted clients", "It is safe against strangers."),
    Phrase(r"knows of", "knows, has, knows about", "The broker knows of the topic."),
    # Forms of statements
    Phrase(r"(?:can|cannot) go together", "are mutually exclusive, can be combined", "--a and --b cannot go together."),
    Phrase(r"(?<=[\"( ])say (?:which|when)[^.]{0,20}:", "specify", "(say which timer: --key)"),
    Phrase(r"(?:will be|is|are) made if", "created if", "The directory is made if it does not exist."),
    Phrase(r"as (?:it|they) came", "unchanged", "Names are printed as they came."),
    Phrase(rf"(?<!there )(?:is|are) no (?:valid )?{_VALUES}", "is not a valid …", "A value that is no number."),
    Phrase(r"to \d+ it (?:can|must|may)", "must be …", "1 to 65535 it can be."),
    Phrase(r"so long (?:from|after|before)", "a delay from", "So long from now it is due."),
    Phrase(rf"{_PLURALS} an? {_UNITS}(?! time| try| attempt)", "… per …", "It sends 5,000 messages a second."),
    Phrase(
        rf"one (?:file|row|line|thread|record|request|frame|entry|source) an? {_THINGS}",
        "one … per …",
        "The folder has one file a command.",
    ),
    Phrase(rf"{_STORED} (?:lies?|lay) (?:in|at|there|below|behind|before)", "is in, is at", "The record lies in it."),
    Phrase(r"as (?:it|they) (?:lies?|lay)", "as it is", "Records are sent as they lie in the log."),
    Phrase(
        rf"{_NOT_LAGGING}behind the (?:checkpoint|cut|record|entry|last (?:one|entry|record))",
        "after the …",
        "Entries behind the checkpoint are dropped.",
    ),
    # One word for each step: renew a timer, build a window, load a window, cancel or move a timer
    Phrase(r"cancels? (?:that )?(?:takes?|took)", "cancels", "A cancel takes all timers of its name."),
    Phrase(r"taken by a (?:cancel|move)", "cancelled or moved", "Rows that are taken by a cancel."),
    Phrase(r"delivered (?:or|nor) taken", "delivered, cancelled or moved", "Every row is delivered or taken."),
    Phrase(
        r"(?:rolls?|rolled|rolling) (?:an? |the |its |their )?windows?|windows? (?:is|are|was|were) rolled",
        "build a window",
        "The driver rolls a window.",
    ),
    Phrase(r"rolls? without (?:it|Spark|a JVM)", "builds … without Spark", "The broker rolls without Spark."),
    Phrase(
        r"(?:plays?|played|playing) (?:an? |the |its |their )?(?:windows?|attempts?)"
        r"|(?:windows?|attempts?) (?:is|are|was|were|be) (?:not )?played",
        "load a window",
        "The broker plays the window.",
    ),
)


COMPILED = [(re.compile(rf"(?<!\w)(?:{phrase.pattern})(?!\w)", re.IGNORECASE), phrase.instead) for phrase in PHRASES]
CODE = "\0"  # stands for each character of code: part of no phrase
PARAGRAPH = "\1"  # stands for an empty line: phrases do not span paragraphs
INLINE_CODE = re.compile(r"(?<!`)`[^`\n]+(?:\n[^`\n]+)?`(?!`)")
CODE_RUN = re.compile(rf"{CODE}[{CODE} ]*{CODE}")
OPENING_QUOTES = re.compile(r"""(\w*)(\"{3}|'{3}|["'])""")
REPLACEMENT_FIELD = re.compile(r"\{[^{}]*\}")
ESCAPED_SPACE = re.compile(r"\\[nrt]")


def as_code(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", CODE, match[0])


def unquoted(literal: str) -> str:
    """A string literal with spaces instead of its prefix and quotes, so that adjacent literals read as one text."""
    opening = OPENING_QUOTES.match(literal)
    assert opening, literal
    prefix, quotes = opening.groups()
    text = literal[opening.end() : -len(quotes)]
    if "f" in prefix.lower():
        text = REPLACEMENT_FIELD.sub(as_code, text)
    return " " * opening.end() + text + " " * len(quotes)


def python_prose(source: str) -> str:
    """The comments and strings of a module where they stand, and CODE for everything else."""
    starts = [0]
    for line in io.StringIO(source):
        starts.append(starts[-1] + len(line))
    prose = list(re.sub(r"\S", CODE, source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        text = source[begin:end]
        match tokenize.tok_name[token.type]:
            case "COMMENT":
                prose[begin:end] = text.replace("#", " ", 1)
            case "STRING":
                prose[begin:end] = unquoted(text)
            case "FSTRING_MIDDLE":  # f-strings are single tokens before Python 3.12
                prose[begin:end] = text
            case "FSTRING_START" | "FSTRING_END":
                prose[begin:end] = " " * len(text)
    return ESCAPED_SPACE.sub("  ", "".join(prose))


def prose_of(path: Path) -> str:
    """The text of a file for people, line by line as in the file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = python_prose(text)
    elif path.suffix != ".md":
        text = re.sub(r"^[ \t]*#", " ", text, flags=re.MULTILINE)
    return INLINE_CODE.sub(as_code, text)


def phrases_in(text: str) -> Iterator[tuple[int, str, str]]:
    """The forbidden phrases of a text: line, phrase, and what to write instead."""
    words, starts, lines = [], [], []
    length = 0
    for number, line in enumerate(text.split("\n"), 1):
        for word in CODE_RUN.sub(CODE, line).split() or [PARAGRAPH]:
            words.append(word)
            starts.append(length)
            lines.append(number)
            length += len(word) + 1
    flat = " ".join(words)
    for pattern, instead in COMPILED:
        for found in pattern.finditer(flat):
            yield lines[bisect_right(starts, found.start()) - 1], found[0], instead


def checked_files() -> list[Path]:
    found = {path for glob in CHECKED for path in ROOT.glob(glob)}
    return sorted(found - {Path(__file__).resolve()})  # this file quotes the phrases


def test_texts_are_plain_technical_english() -> None:
    offences = sorted(
        (str(path.relative_to(ROOT)), line, f"“{phrase}”; write: {instead}")
        for path in checked_files()
        for line, phrase, instead in phrases_in(prose_of(path))
    )
    report = "\n".join(f"{path}:{line}: {what}" for path, line, what in offences)
    assert not offences, f"{len(offences)} phrases to replace\n{report}"


@pytest.mark.parametrize("glob", CHECKED)
def test_every_glob_finds_a_file(glob: str) -> None:
    assert any(ROOT.glob(glob))


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.instead)
def test_a_phrase_is_found_in_its_example(phrase: Phrase) -> None:
    assert phrase.instead in {instead for _, _, instead in phrases_in(phrase.example)}


GOOD_ENGLISH = """
There is no time to wait. There are no messages in the queue. The client is no longer connected, so it is no problem.
Timers are sent as fast as the broker can. As time goes on, the queue grows. Then go on to the next page.
The tests pass over 100 rows. Clients who wait longer get an error.
Two passes over the data are enough, and the rows are all the same.
Besides, a retry sends the messages a second time. It takes a second. It records a message and queues a timer.
The replica lags behind the checkpoint. Log records are put in a table; the user puts the book back.
The user `nobody` owns it, and `nobody reads` is logged. The file is in the directory next to the log.

The driver is
"""


def test_good_english_passes() -> None:
    assert not list(phrases_in(INLINE_CODE.sub(as_code, GOOD_ENGLISH + "\n\ntold once.")))


def test_a_phrase_is_found_across_lines_at_the_line_where_it_begins() -> None:
    assert [(line, phrase) for line, phrase, _ in phrases_in("One.\nIt is\n  told twice.")] == [(2, "is told")]


def test_comments_docstrings_and_strings_of_modules_are_checked_and_code_is_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '''"""The driver is told."""

# Names are parted
# by commas.
anew = "tried " + str(beside)
text = (f"a file that {nobody} reads, once "
    "more")
taker_names = [anew]  # `anew` is a name
''',
        encoding="utf-8",
    )
    assert sorted((line, phrase) for line, phrase, _ in phrases_in(prose_of(module))) == [
        (1, "is told"),
        (3, "parted by"),
        (6, "once more"),
    ]
