"""`python -m latermq` is the same as the `latermq` command."""

import sys

from latermq.cli import main

sys.exit(main())
