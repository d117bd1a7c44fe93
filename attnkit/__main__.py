"""`python -m attnkit`: the `attnkit` command."""

import sys

from attnkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
