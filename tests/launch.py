"""The command line as a script that torchrun can start."""

import sys

from clustermim.cli import main

if __name__ == "__main__":
    sys.exit(main())
