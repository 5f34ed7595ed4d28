"""`python -m clustermim` is the command line."""

import sys

from clustermim.cli import main

sys.exit(main())
