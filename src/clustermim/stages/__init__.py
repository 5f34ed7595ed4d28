"""The stages: what the command line and studies run; options in, a run folder out."""
