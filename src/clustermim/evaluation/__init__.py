"""What an encoder learned, measured: cached features, a linear probe, nearest neighbours."""
