"""One page about many runs: `clustermim report`."""
