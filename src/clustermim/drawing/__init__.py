"""Everything that is a picture: tokens, token maps, reconstructions, charts; for the eye, and for no other room."""
