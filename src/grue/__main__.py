"""`python -m grue` is `grue`."""

import sys

from grue.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "grue"
    main()
