"""`python -m grue` is `grue`."""

import sys

from grue.cli.several import end_at_once

if __name__ == "__main__":
    end_at_once()  # before the imports that take longest
    from grue.cli.main import main

    sys.argv[0] = "grue"
    main()
